// Enough of CUDA for gemm.cu on a CPU: one thread per thread, warps in step at their collective operations.
// Copies happen at once; barriers count as the hardware's do, so a schedule that would hang or overrun a stage hangs or
// gives wrong numbers here too. Blocks run one after another.

#include <barrier>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#define __device__
#define __global__
#define __forceinline__ inline
#define __align__(n)
#define __shared__ thread_local
#define __launch_bounds__(...)
#define __CUDA_ARCH__ EMULATED_ARCHITECTURE

struct uint2 { unsigned x, y; };
struct uint4 { unsigned x, y, z, w; };
struct float4 { float x, y, z, w; };
struct Index { unsigned x; };
static uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
static float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

struct Warp {
    std::barrier<> gate{32};
    unsigned words[32][6];
    int value;
};

struct Barrier {
    int count = 0, pending = 0, bytes = 0;
    unsigned phase = 0;
};

struct Block {
    std::vector<unsigned char> memory;
    std::map<unsigned, Barrier> barriers;
    std::mutex lock;
    std::condition_variable changed;
    std::vector<std::unique_ptr<Warp>> warps;
    std::unique_ptr<std::barrier<>> everyone, consumers;
};

static Block* block;
static thread_local Index threadIdx, blockIdx;

static Warp& warp() { return *block->warps[threadIdx.x / 32]; }
static int lane_index() { return threadIdx.x % 32; }
static void __syncwarp() { warp().gate.arrive_and_wait(); }
static void __syncthreads() { block->everyone->arrive_and_wait(); }
static int min(int a, int b) { return a < b ? a : b; }
static int max(int a, int b) { return a > b ? a : b; }
static float __int_as_float(int bits) { float v; std::memcpy(&v, &bits, 4); return v; }
static unsigned float_bits(float v) { unsigned bits; std::memcpy(&bits, &v, 4); return bits; }
static void __stcg(float4* target, float4 v) { *target = v; }
static float4 __ldcg(const float4* source) { return *source; }
static int atomicAdd(int* target, int value) { int before = *target; *target += value; return before; }

static int count_arrival(int* counter) { return atomicAdd(counter, 1); }

static int __shfl_sync(unsigned, int value, int source) {
    if (lane_index() == source) warp().value = value;
    __syncwarp();
    int found = warp().value;
    __syncwarp();
    return found;
}

static unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
    std::uint64_t both = (std::uint64_t)b << 32 | a;
    unsigned result = 0;
    for (int i = 0; i < 4; ++i) result |= (unsigned)(both >> 8 * (selector >> 4 * i & 7) & 0xFF) << 8 * i;
    return result;
}

typedef unsigned char byte;
typedef unsigned short half_word;
typedef unsigned int word;
typedef unsigned long long long_word;

static word shared_address(const void*) { return 0; }
static void settle(Barrier& barrier) {
    if (barrier.pending == 0 && barrier.bytes == 0) {
        barrier.pending = barrier.count;
        barrier.phase += 1;
        block->changed.notify_all();
    }
}
static void barrier_init(word address, int count) {
    std::lock_guard<std::mutex> held(block->lock);
    block->barriers[address] = Barrier{count, count, 0, 0};
}
static void arrive(word address, int bytes) {
    std::lock_guard<std::mutex> held(block->lock);
    Barrier& barrier = block->barriers.at(address);
    barrier.bytes += bytes;
    barrier.pending -= 1;
    settle(barrier);
}
static void barrier_arrive(word address) { arrive(address, 0); }
static void expect_bytes(word address, int bytes) { arrive(address, bytes); }
static void arrive_when_copied(word address) { arrive(address, 0); }
static void barrier_wait(word address, word parity) {
    std::unique_lock<std::mutex> held(block->lock);
    block->changed.wait(held, [&] { return (block->barriers.at(address).phase & 1) != parity; });
}
static void copy_bulk(word target, const void* source, int bytes, word address) {
    std::lock_guard<std::mutex> held(block->lock);
    if (target % 16 || bytes % 16 || (std::uintptr_t)source % 16) std::abort();
    std::memcpy(block->memory.data() + target, source, bytes);
    Barrier& barrier = block->barriers.at(address);
    barrier.bytes -= bytes;
    settle(barrier);
}
static bool elected() { __syncwarp(); return lane_index() == 0; }
static long_word streaming_policy() { return 0; }
static void copy_weights(word target, const byte* source, int bytes, word barrier, long_word) {
    copy_bulk(target, source, bytes, barrier);
}
static void copy_x(word target, const half_word* source, int bytes, word barrier) { copy_bulk(target, source, bytes, barrier); }
static void copy_16(word target, const void* source) {
    if (target % 16 || (std::uintptr_t)source % 16) std::abort();
    std::memcpy(block->memory.data() + target, source, 16);
}
static void consumers_sync() { block->consumers->arrive_and_wait(); }
static void wait_for_predecessor() {}
static void let_successor_start() {}

static float half_of(word pair, int i) { return __int_as_float((int)(pair >> 16 * i << 16)); }
static word rounded(float v) {
    word bits = float_bits(v);
    if (v != v) return 0x7FFF;
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
}
static word times(word pair, word factor) {
    return rounded(half_of(pair, 0) * half_of(factor, 0)) | rounded(half_of(pair, 1) * half_of(factor, 1)) << 16;
}
static uint4 load_16(word address) { uint4 v; std::memcpy(&v, block->memory.data() + address, 16); return v; }
static uint2 load_8(word address) { uint2 v; std::memcpy(&v, block->memory.data() + address, 8); return v; }

static void mma(float (&c)[4], word a0, word a1, word a2, word a3, word b0, word b1) {
    Warp& w = warp();
    int lane = lane_index();
    word mine[6] = {a0, a1, a2, a3, b0, b1};
    std::memcpy(w.words[lane], mine, sizeof mine);
    __syncwarp();
    for (int i = 0; i < 4; ++i) {
        int row = lane / 4, column = 2 * (lane % 4) + i % 2;
        double sum = c[i];
        for (int k = 0; k < 16; ++k) {
            word a = w.words[4 * row + k % 8 / 2][i / 2 + k / 8 * 2], b = w.words[4 * column + k % 8 / 2][4 + k / 8];
            sum += (double)half_of(a, k % 2) * half_of(b, k % 2);
        }
        c[i] = (float)sum;
    }
    __syncwarp();
}

static word transposed_pair(float even, float odd) {
    Warp& w = warp();
    int lane = lane_index();
    w.words[lane][0] = rounded(even) | rounded(odd) << 16;
    __syncwarp();
    int row = lane / 4, first = 2 * (lane % 4);
    word low = w.words[4 * first + row / 2][0] >> 16 * (row % 2) & 0xFFFF;
    word high = w.words[4 * (first + 1) + row / 2][0] >> 16 * (row % 2) & 0xFFFF;
    __syncwarp();
    return low | high << 16;
}
