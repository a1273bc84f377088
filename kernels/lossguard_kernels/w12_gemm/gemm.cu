// y = x W^T with W in W12: weights stream through shared memory once and become bf16 in registers.
//
// A block owns a range of bands (16 rows of W) and, with split-K, a slice of the columns. Two producer warps keep a ring of
// STAGES filled, one with weights by bulk copies (cp.async before sm_90), one with x; WARPS_N x WARPS_K consumer warps decode and
// multiply with mma.m16n8k16, weights as A and x as B; the rest add up the escapes. docs/w12-gemm.md derives every step.
//
// Set by the compiler's command line: X_ROWS (rows of x that fit), BANDS (per warp), WARPS_N, WARPS_K, K_TILES (tiles of 64
// columns a stage), STAGES, MIN_BLOCKS (a multiprocessor), HI_ONLY (read the 8-bit plane alone).

typedef unsigned char byte;
typedef unsigned short half_word;
typedef unsigned int word;
typedef unsigned long long long_word;

#define INLINE static __device__ __forceinline__

constexpr int kScale = 64;  // x is multiplied by 2^64, so that products of tiny decoded weights stay normal
constexpr int kWarpBands = BANDS;
constexpr int kBands = BANDS * WARPS_N;
constexpr int kColumnTiles = (X_ROWS + 7) / 8;
constexpr int kConsumers = WARPS_N * WARPS_K;
constexpr int kEscapers = 4 - (kConsumers + 2) % 4;  // whole quarters of warps: registers are dealt out by them
constexpr int kThreads = 32 * (kConsumers + 2 + kEscapers);
constexpr int kHiTile = 1024;  // bytes of 16 rows x 64 columns
constexpr int kLoTile = HI_ONLY ? 0 : 512;
constexpr int kXRowBytes = K_TILES * 128 + 16;  // 16 bytes of padding: rows start in other banks
constexpr int kLoOffset = kBands * K_TILES * kHiTile;
constexpr int kXOffset = kLoOffset + kBands * K_TILES * kLoTile;
constexpr int kStageBytes = (kXOffset + X_ROWS * kXRowBytes + 127) / 128 * 128;
constexpr int kSumBytes = (WARPS_K - 1) * kBands * kColumnTiles * 512;
constexpr int kEscapeBytes = HI_ONLY ? 0 : kBands * kColumnTiles * 512;
constexpr int kBarrierOffset = STAGES * kStageBytes + kSumBytes + kEscapeBytes;
#ifndef WINDOW_BYTES
#define WINDOW_BYTES 32768
#endif
// Stages of weights on their way at a time: enough for the bandwidth. More would only lengthen the queue before memory, and with
// it every other access: x, escapes, partial sums.
constexpr int kWindow = (WINDOW_BYTES + kXOffset - 1) / kXOffset + 1;
constexpr int kArrivingLanes = 1;  // one for its warp; 32 for racecheck, which follows no lane that speaks for others

struct Problem {
    const byte* hi;
    const byte* lo;
    const half_word* x;            // [m, x_stride], bf16
    half_word* y;                  // [m, 16 * bands], bf16
    const half_word* bias;         // [16 * bands] or null
    const byte* base;              // [1] or [16 * bands]
    const int* escape_start;       // [bands + 1]
    const int* escape_place;       // (row % 128) << 24 | column
    const half_word* escape_bits;
    float4* partials;              // split-K: [bands, slices, kColumnTiles, 32]
    int* counters;                 // split-K: [bands], zero before and after
    int bands, k_tiles, m, x_stride;
    int parts, slices;             // blocks: parts x slices
    int base_step;                 // 0: one base, 1: one per row
};

// ---------------------------------------------------------------------------------------------- barriers and copies

INLINE word shared_address(const void* pointer) { return (word)__cvta_generic_to_shared(pointer); }

INLINE void barrier_init(word barrier, int count) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

INLINE void barrier_arrive(word barrier) {
    asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared.b64 state, [%0];\n}" ::"r"(barrier) : "memory");
}

// What a warp read or wrote is done with.
INLINE void warp_arrive(word barrier, int lane) {
    __syncwarp();
    if (lane < kArrivingLanes) barrier_arrive(barrier);
}

INLINE void barrier_wait(word barrier, word parity) {
    word done;
    do {
#if __CUDA_ARCH__ >= 900
        asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                     : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
#else
        asm volatile("{\n.reg .pred p;\nmbarrier.test_wait.parity.shared.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                     : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
#endif
    } while (!done);
}

INLINE void consumers_sync() { asm volatile("bar.sync 1, %0;" ::"n"(32 * kConsumers) : "memory"); }

// Adds one and returns what was there. Whoever counts later sees what this warp wrote before.
INLINE int count_arrival(int* counter) {
    int before;
    asm volatile("atom.add.acq_rel.gpu.global.s32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
    return before;
}

// What the kernel before this one in the stream wrote may be read after this, and not before.
INLINE void wait_for_predecessor() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

INLINE void let_successor_start() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

#if __CUDA_ARCH__ >= 900
constexpr bool kLanesCopyX = X_ROWS > 1;  // many short rows: a bulk copy each would take longer to issue
constexpr int kWeightArrivals = 1, kXArrivals = kLanesCopyX ? 32 : 1;

// One lane of a whole warp. The assembler then knows that there is only one, and needs no loop around a bulk copy.
INLINE bool elected() {
    word chosen;
    asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xFFFFFFFF;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(chosen));
    return chosen != 0;
}

INLINE long_word streaming_policy() {
    long_word policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

INLINE void expect_bytes(word barrier, int bytes) {
    asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.expect_tx.shared.b64 state, [%0], %1;\n}" ::"r"(barrier), "r"(bytes)
                 : "memory");
}

INLINE void copy_weights(word target, const byte* source, int bytes, word barrier, long_word policy) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(
            target), "l"(source), "r"(bytes), "r"(barrier), "l"(policy) : "memory");
}

INLINE void copy_x(word target, const half_word* source, int bytes, word barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(target),
                 "l"(source), "r"(bytes), "r"(barrier) : "memory");
}
#else
constexpr bool kLanesCopyX = true;
constexpr int kWeightArrivals = 32, kXArrivals = 32;
#endif

INLINE void copy_16(word target, const void* source) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(target), "l"(source) : "memory");
}

INLINE void arrive_when_copied(word barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}

struct Barriers {
    word weights, x, empty;           // one per stage: weights have come, x has come, both have been read
    word escapes_full, escapes_empty;

    INLINE Barriers at(word start) {
        Barriers barriers;
        barriers.weights = start;
        barriers.x = start + 8 * STAGES;
        barriers.empty = start + 16 * STAGES;
        barriers.escapes_full = start + 24 * STAGES;
        barriers.escapes_empty = start + 24 * STAGES + 8;
        return barriers;
    }

    __device__ __forceinline__ void init() const {
        for (int stage = 0; stage < STAGES; ++stage) {
            barrier_init(weights + 8 * stage, kWeightArrivals);
            barrier_init(x + 8 * stage, kXArrivals);
            barrier_init(empty + 8 * stage, kArrivingLanes * kConsumers);
        }
        barrier_init(escapes_full, kArrivingLanes * kEscapers);
        barrier_init(escapes_empty, kArrivingLanes * WARPS_N);
    }
};

// --------------------------------------------------------------------------------------------------------- schedule

// Which bands and tiles of columns a block works on. Groups of up to kBands bands follow each other.
struct Share {
    int first_band, num_bands, num_groups, first_tile, end_tile;

    INLINE Share of(const Problem& p, int part, int slice) {
        Share share;
        share.first_band = (int)((long long)part * p.bands / p.parts);
        share.num_bands = (int)((long long)(part + 1) * p.bands / p.parts) - share.first_band;
        share.num_groups = (share.num_bands + kBands - 1) / kBands;
        share.first_tile = (int)((long long)slice * p.k_tiles / p.slices);
        share.end_tile = (int)((long long)(slice + 1) * p.k_tiles / p.slices);
        return share;
    }
    __device__ __forceinline__ int group_start(int group) const { return first_band + group * num_bands / num_groups; }
};

struct Cursor {
    int group, tile;

    __device__ __forceinline__ void advance(const Share& share) {
        tile += K_TILES;
        if (tile >= share.end_tile) {
            tile = share.first_tile;
            group += 1;
        }
    }
};

// --------------------------------------------------------------------------------------------------------- producer

struct Fill {
    int first_band, num_bands, tile, num_tiles;
    word target, barrier;
};

INLINE Fill fill_of(const Share& share, const Cursor& cursor, word ring, word arrived, int stage) {
    Fill fill;
    fill.first_band = share.group_start(cursor.group);
    fill.num_bands = share.group_start(cursor.group + 1) - fill.first_band;
    fill.tile = cursor.tile;
    fill.num_tiles = min(K_TILES, share.end_tile - cursor.tile);
    fill.target = ring + stage * kStageBytes;
    fill.barrier = arrived + 8 * stage;
    return fill;
}

#if __CUDA_ARCH__ >= 900
// By one lane: a warp's bulk copies are issued one by one anyway, and far more slowly.
INLINE void fill_weights(const Problem& p, const Fill& fill, int) {
    if (!elected()) return;
    long_word policy = streaming_policy();
    expect_bytes(fill.barrier, fill.num_tiles * fill.num_bands * (kHiTile + kLoTile));
    size_t first = (size_t)fill.first_band * p.k_tiles + fill.tile;
    const byte* hi = p.hi + first * kHiTile;
    const byte* lo = p.lo + first * kLoTile;
    word target = fill.target, target_lo = fill.target + kLoOffset;
#pragma unroll 4
    for (int band = 0; band < fill.num_bands; ++band) {
        copy_weights(target, hi, fill.num_tiles * kHiTile, fill.barrier, policy);
        if (!HI_ONLY) copy_weights(target_lo, lo, fill.num_tiles * kLoTile, fill.barrier, policy);
        hi += (size_t)p.k_tiles * kHiTile;
        lo += (size_t)p.k_tiles * kLoTile;
        target += K_TILES * kHiTile;
        target_lo += K_TILES * kLoTile;
    }
}
#else
INLINE void fill_weights(const Problem& p, const Fill& fill, int lane) {
    for (int band = 0; band < fill.num_bands; ++band) {
        size_t tile = (size_t)(fill.first_band + band) * p.k_tiles + fill.tile;
        for (int at = 16 * lane; at < fill.num_tiles * kHiTile; at += 512) {
            copy_16(fill.target + band * K_TILES * kHiTile + at, p.hi + tile * kHiTile + at);
        }
        for (int at = 16 * lane; at < fill.num_tiles * kLoTile; at += 512) {
            copy_16(fill.target + kLoOffset + band * K_TILES * kLoTile + at, p.lo + tile * kLoTile + at);
        }
    }
    arrive_when_copied(fill.barrier);
}
#endif

INLINE void fill_x(const Problem& p, const Fill& fill, int lane) {
    word target = fill.target + kXOffset;
    const half_word* source = p.x + fill.tile * 64;
    if (!kLanesCopyX) {
#if __CUDA_ARCH__ >= 900
        if (elected()) {
            expect_bytes(fill.barrier, fill.num_tiles * 128);
            copy_x(target, source, fill.num_tiles * 128, fill.barrier);
        }
#endif
        return;
    }
    target += lane / 8 * kXRowBytes + lane % 8 * 16;
    source += (size_t)(lane / 8) * p.x_stride + lane % 8 * 8;
    if (fill.num_tiles == K_TILES) {
#pragma unroll
        for (int first = 0; first < (X_ROWS + 3) / 4 * 4; first += 4) {
            if (first + lane / 8 < p.m) {
#pragma unroll
                for (int tile = 0; tile < K_TILES; ++tile) copy_16(target + tile * 128, source + tile * 64);
            }
            target += 4 * kXRowBytes;
            source += 4 * (size_t)p.x_stride;
        }
    } else {
        for (int row = lane / 8; row < p.m; row += 4) {
            for (int tile = 0; tile < fill.num_tiles; ++tile) copy_16(target + tile * 128, source + tile * 64);
            target += 4 * kXRowBytes;
            source += 4 * (size_t)p.x_stride;
        }
    }
    arrive_when_copied(fill.barrier);
}

// Weights depend on no other kernel, so their producer does not wait for the one before.
template <bool WEIGHTS>
INLINE void produce(const Problem& p, const Share& share, word ring, const Barriers& barriers, int lane) {
    int num_fills = share.num_groups * ((share.end_tile - share.first_tile + K_TILES - 1) / K_TILES);
    Cursor cursor = {0, share.first_tile};
    int stage = 0;
    word parity = 1;  // the first round finds every stage empty
    if (!WEIGHTS) wait_for_predecessor();
    for (int fill = 0; fill < num_fills; ++fill, cursor.advance(share)) {
        barrier_wait(barriers.empty + 8 * stage, parity);
        if (WEIGHTS && kWindow < STAGES && fill >= kWindow) {
            int earlier = fill - kWindow;
            barrier_wait(barriers.weights + 8 * (earlier % STAGES), earlier / STAGES & 1);
        }
        Fill next = fill_of(share, cursor, ring, WEIGHTS ? barriers.weights : barriers.x, stage);
        if (WEIGHTS) {
            fill_weights(p, next, lane);
        } else {
            fill_x(p, next, lane);
        }
        if (++stage == STAGES) {
            stage = 0;
            parity ^= 1;
        }
    }
    if (WEIGHTS) wait_for_predecessor();
}

// --------------------------------------------------------------------------------------------------------- consumer

typedef float Tile[kColumnTiles][4];

INLINE void mma(float (&c)[4], word a0, word a1, word a2, word a3, word b0, word b1) {
    asm(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

INLINE word times(word pair, word factor) {
    word product;
#if __CUDA_ARCH__ >= 900
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(pair), "r"(factor));
#else
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(product) : "r"(pair), "r"(factor), "r"(0x80008000u));  // plus -0
#endif
    return product;
}

INLINE word power_of_two(int exponent) { return (word)(127 + exponent) << 7 << 16 | (word)(127 + exponent) << 7; }

INLINE float float_power_of_two(int exponent) { return __int_as_float((127 + exponent) << 23); }

// acc * 2^exponent in two steps, since the power alone may be no float.
INLINE float scaled(float value, int exponent) {
    int first = exponent / 2;
    return value * float_power_of_two(first) * float_power_of_two(exponent - first);
}

// Four records -> two pairs of bf16 numbers whose exponent field is the 4-bit code: 2^-base times the weights, exactly.
// hi: a byte s cccc mmm for each; low nibbles of the bytes of lo: llll. Wanted: s 0000 ccc | c mmm llll.
INLINE void decode(word hi, word lo, word& first, word& second) {
    word lower = (hi << 4 & 0xF0F0F0F0u) | (lo & 0x0F0F0F0Fu);
    word upper = (hi & 0x80808080u) | (hi >> 4 & 0x07070707u);
    first = __byte_perm(lower, upper, 0x5140);
    second = __byte_perm(lower, upper, 0x7362);
}

INLINE uint4 load_16(word address) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(address));
    return v;
}

INLINE uint2 load_8(word address) {
    uint2 v;
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(address));
    return v;
}

struct Lane {
    int index, row, quad;  // of the mma fragments: row = index / 4, quad = index % 4
    int warp_n, warp_k;
};

// One tile of 64 columns: lane (row, quad) has columns 16 quad to 16 quad + 15 of rows `row` and `row + 8`; the mma's own
// order of k does not matter as long as x has the same.
template <bool ALL>
INLINE void multiply_tile(word stage, int tile, const Lane& lane, int num_mine, Tile (&acc)[kWarpBands]) {
    uint4 hi[kWarpBands][2];
    uint2 lo[kWarpBands][2];
#pragma unroll
    for (int r = 0; r < kWarpBands; ++r) {
        if (ALL || r < num_mine) {
            int at = (r * WARPS_N + lane.warp_n) * K_TILES + tile;
            hi[r][0] = load_16(stage + at * kHiTile + 16 * lane.index);
            hi[r][1] = load_16(stage + at * kHiTile + 512 + 16 * lane.index);
            if (!HI_ONLY) {
                lo[r][0] = load_8(stage + kLoOffset + at * kLoTile + 8 * lane.index);
                lo[r][1] = load_8(stage + kLoOffset + at * kLoTile + 256 + 8 * lane.index);
            } else {
                lo[r][0] = lo[r][1] = make_uint2(0, 0);
            }
        }
    }
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {
        uint4 x[kColumnTiles];
#pragma unroll
        for (int c = 0; c < kColumnTiles; ++c) {
            int row = min(8 * c + lane.row, X_ROWS - 1);
            x[c] = load_16(stage + kXOffset + row * kXRowBytes + tile * 128 + lane.quad * 32 + pair * 16);
            x[c].x = times(x[c].x, power_of_two(kScale));
            x[c].y = times(x[c].y, power_of_two(kScale));
            x[c].z = times(x[c].z, power_of_two(kScale));
            x[c].w = times(x[c].w, power_of_two(kScale));
        }
#pragma unroll
        for (int r = 0; r < kWarpBands; ++r) {
            if (ALL || r < num_mine) {
                word a[8];
                decode(pair ? hi[r][0].z : hi[r][0].x, pair ? lo[r][0].y : lo[r][0].x, a[0], a[2]);
                decode(pair ? hi[r][1].z : hi[r][1].x, pair ? lo[r][1].y : lo[r][1].x, a[1], a[3]);
                decode(pair ? hi[r][0].w : hi[r][0].y, (pair ? lo[r][0].y : lo[r][0].x) >> 4, a[4], a[6]);
                decode(pair ? hi[r][1].w : hi[r][1].y, (pair ? lo[r][1].y : lo[r][1].x) >> 4, a[5], a[7]);
#pragma unroll
                for (int c = 0; c < kColumnTiles; ++c) mma(acc[r][c], a[0], a[1], a[2], a[3], x[c].x, x[c].y);
#pragma unroll
                for (int c = 0; c < kColumnTiles; ++c) mma(acc[r][c], a[4], a[5], a[6], a[7], x[c].z, x[c].w);
            }
        }
    }
}

// ---------------------------------------------------------------------------------------------------------- escapes

// Escapes are further columns of the product, 16 at a time: A holds each weight at its row and zeros elsewhere. Each chunk of
// 16 belongs to one of the slices. Warps of their own gather x and multiply, since that takes three accesses to memory, one after
// another; their sums wait in shared memory for the warps that multiply the rest.
struct Chunk {
    word weights[2][2];  // [k or k + 8][row or row + 8]
    int columns[4];      // -1: none
};

constexpr int kBatch = kColumnTiles <= 2 ? 4 : 2;  // bands at once

INLINE Chunk load_chunk(const Problem& p, const Lane& lane, int first, int end) {
    Chunk chunk = {{{0, 0}, {0, 0}}, {-1, -1, -1, -1}};
    if (first >= end) return chunk;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        int entry = first + 2 * lane.quad + i % 2 + i / 2 * 8;
        bool exists = entry < end;
        int place = exists ? p.escape_place[entry] : 0;
        word bits = exists ? p.escape_bits[entry] : 0;
        int row = place >> 24 & 15;
        chunk.columns[i] = exists ? place & 0xFFFFFF : -1;
        chunk.weights[i / 2][0] |= (row == lane.row ? bits : 0) << 16 * (i % 2);
        chunk.weights[i / 2][1] |= (row == lane.row + 8 ? bits : 0) << 16 * (i % 2);
    }
    return chunk;
}

INLINE void gather(const Problem& p, const Lane& lane, const Chunk& chunk, word (&b)[kColumnTiles][2]) {
#pragma unroll
    for (int c = 0; c < kColumnTiles; ++c) {
        const half_word* x = p.x + (size_t)min(8 * c + lane.row, p.m - 1) * p.x_stride;
        b[c][0] = b[c][1] = 0;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            b[c][i / 2] |= (chunk.columns[i] >= 0 ? (word)x[chunk.columns[i]] : 0) << 16 * (i % 2);
        }
    }
}

INLINE void add_chunk(const Chunk& chunk, const word (&b)[kColumnTiles][2], Tile& sum) {
#pragma unroll
    for (int c = 0; c < kColumnTiles; ++c) {
        mma(sum[c], chunk.weights[0][0], chunk.weights[0][1], chunk.weights[1][0], chunk.weights[1][1], b[c][0], b[c][1]);
    }
}

// The escapes of up to kBatch bands. Their first chunks are on their way together.
INLINE void sum_batch(const Problem& p, const Lane& lane, int slice, int first_band, int num_bands, bool wait, float4* sums) {
    int next[kBatch], end[kBatch], bases[kBatch][2];
    Chunk chunks[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
        int band = first_band + min(i, num_bands - 1);
        int row = 16 * band + lane.row;
        end[i] = i < num_bands ? p.escape_start[band + 1] : 0;
        next[i] = p.escape_start[band] + 16 * ((slice + band) % p.slices);
        bases[i][0] = p.base[row * p.base_step];
        bases[i][1] = p.base[(row + 8) * p.base_step];
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) chunks[i] = load_chunk(p, lane, next[i], end[i]);
    if (wait) wait_for_predecessor();
    word b[kBatch][kColumnTiles][2];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) gather(p, lane, chunks[i], b[i]);
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
        Tile sum;
#pragma unroll
        for (int c = 0; c < kColumnTiles; ++c) sum[c][0] = sum[c][1] = sum[c][2] = sum[c][3] = 0.0f;
        add_chunk(chunks[i], b[i], sum);
        for (next[i] += 16 * p.slices; next[i] < end[i]; next[i] += 16 * p.slices) {
            Chunk chunk = load_chunk(p, lane, next[i], end[i]);
            gather(p, lane, chunk, b[i]);
            add_chunk(chunk, b[i], sum);
        }
        int low = kScale - bases[i][0], high = kScale - bases[i][1];
#pragma unroll
        for (int c = 0; c < kColumnTiles; ++c) {
            float4 v = make_float4(scaled(sum[c][0], low), scaled(sum[c][1], low), scaled(sum[c][2], high), scaled(sum[c][3], high));
            if (i < num_bands) sums[(i * kColumnTiles + c) * 32 + lane.index] = v;
        }
    }
}

INLINE void sum_escapes(const Problem& p, const Share& share, const Lane& lane, int slice, int escaper, const Barriers& barriers,
                        float4* sums) {
    if (HI_ONLY) return;
    for (int group = 0; group < share.num_groups; ++group) {
        int start = share.group_start(group), num_bands = share.group_start(group + 1) - start;
        if (group > 0) barrier_wait(barriers.escapes_empty, (group - 1) & 1);
        for (int first = escaper * kBatch; first < num_bands; first += kEscapers * kBatch) {
            bool wait = group == 0 && first == escaper * kBatch;
            sum_batch(p, lane, slice, start + first, min(kBatch, num_bands - first), wait, sums + first * kColumnTiles * 32);
        }
        warp_arrive(barriers.escapes_full, lane.index);
    }
}

// --------------------------------------------------------------------------------------------------------- the ends

// Loaded before the products, since at their end nothing would hide the wait.
struct Band {
    int number;
    int bases[2];  // of rows `row` and `row + 8`

    INLINE Band of(const Problem& p, const Lane& lane, int number) {
        Band band;
        band.number = number;
        int row = 16 * number + lane.row;
        band.bases[0] = p.base[row * p.base_step];
        band.bases[1] = p.base[(row + 8) * p.base_step];
        return band;
    }
};

INLINE void add_escapes(const Lane& lane, const float4* sums, int group, int num_mine, const Barriers& barriers,
                        Tile (&acc)[kWarpBands]) {
    if (HI_ONLY) return;
    barrier_wait(barriers.escapes_full, group & 1);
#pragma unroll
    for (int r = 0; r < kWarpBands; ++r) {
#pragma unroll
        for (int c = 0; c < kColumnTiles; ++c) {
            if (r < num_mine) {
                float4 v = sums[((r * WARPS_N + lane.warp_n) * kColumnTiles + c) * 32 + lane.index];
                acc[r][c][0] += v.x;
                acc[r][c][1] += v.y;
                acc[r][c][2] += v.z;
                acc[r][c][3] += v.w;
            }
        }
    }
    warp_arrive(barriers.escapes_empty, lane.index);
}

INLINE word transposed_pair(float even, float odd) {
    word pair, transposed;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(odd), "f"(even));
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(pair));
    return transposed;
}

// Scale, add the bias, round once, and write: after the transposition a lane has two neighbouring outputs of one row of y.
INLINE void write_band(const Problem& p, const Lane& lane, const Band& band, const Tile& acc) {
    int row = 16 * band.number + lane.row;
    float bias[2] = {0.0f, 0.0f};
    if (p.bias) {
        bias[0] = __int_as_float((int)p.bias[row] << 16);
        bias[1] = __int_as_float((int)p.bias[row + 8] << 16);
    }
    size_t stride = 16 * (size_t)p.bands;
#pragma unroll
    for (int c = 0; c < kColumnTiles; ++c) {
        int m = 8 * c + lane.row;
        word* target = (word*)(p.y + m * stride + 16 * band.number + 2 * lane.quad);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            float even = scaled(acc[c][2 * i], band.bases[i] - kScale);
            float odd = scaled(acc[c][2 * i + 1], band.bases[i] - kScale);
            if (p.bias) {
                even += bias[i];
                odd += bias[i];
            }
            word pair = transposed_pair(even, odd);
            if (m < p.m) target[4 * i] = pair;
        }
    }
}

// Sums over the warps that share bands, in the order of the warps; the sum is in those of warp_k 0.
INLINE void add_warps(const Lane& lane, float4* sums, int num_mine, Tile (&acc)[kWarpBands]) {
    if (WARPS_K == 1) return;
    consumers_sync();  // the sums of the last group have been read
#pragma unroll
    for (int r = 0; r < kWarpBands; ++r) {
#pragma unroll
        for (int c = 0; c < kColumnTiles; ++c) {
            int at = (((lane.warp_k - 1) * kBands + r * WARPS_N + lane.warp_n) * kColumnTiles + c) * 32 + lane.index;
            float* v = acc[r][c];
            if (lane.warp_k > 0 && r < num_mine) sums[at] = make_float4(v[0], v[1], v[2], v[3]);
        }
    }
    consumers_sync();
    if (lane.warp_k > 0) return;
#pragma unroll
    for (int k = 0; k < WARPS_K - 1; ++k) {
#pragma unroll
        for (int r = 0; r < kWarpBands; ++r) {
#pragma unroll
            for (int c = 0; c < kColumnTiles; ++c) {
                if (r < num_mine) {
                    float4 v = sums[((k * kBands + r * WARPS_N + lane.warp_n) * kColumnTiles + c) * 32 + lane.index];
                    acc[r][c][0] += v.x;
                    acc[r][c][1] += v.y;
                    acc[r][c][2] += v.z;
                    acc[r][c][3] += v.w;
                }
            }
        }
    }
}

// Sums over slices: every warp leaves its part, the last to arrive adds all parts in the order of the slices, whoever it is.
// Returns whether this warp has the sum.
INLINE bool add_slices(const Problem& p, const Lane& lane, int band, int slice, int num_mine, Tile (&acc)[kWarpBands]) {
    if (p.slices == 1) return true;
    if (num_mine == 0) return false;
    constexpr int kPart = kColumnTiles * 32;
    float4* parts = p.partials + (size_t)band * p.slices * kPart + lane.index;
    size_t stride = (size_t)WARPS_N * p.slices * kPart;  // to the next of this warp's bands
#pragma unroll
    for (int r = 0; r < kWarpBands; ++r) {
#pragma unroll
        for (int c = 0; c < kColumnTiles; ++c) {
            float* v = acc[r][c];
            if (r < num_mine) __stcg(parts + r * stride + slice * kPart + c * 32, make_float4(v[0], v[1], v[2], v[3]));
        }
    }
    __syncwarp();
    int before = 0;
    if (lane.index == 0) before = count_arrival(p.counters + band);
    before = __shfl_sync(0xFFFFFFFFu, before, 0);
    if (before != p.slices - 1) return false;
    __syncwarp();
    if (lane.index == 0) p.counters[band] = 0;
#pragma unroll
    for (int r = 0; r < kWarpBands; ++r) {
#pragma unroll
        for (int c = 0; c < kColumnTiles; ++c) acc[r][c][0] = acc[r][c][1] = acc[r][c][2] = acc[r][c][3] = 0.0f;
    }
    constexpr int kAtOnce = (kThreads <= 512 ? 16 : 8) / kColumnTiles;  // as many loads as there are registers for
#pragma unroll
    for (int r = 0; r < kWarpBands; ++r) {
        if (r >= num_mine) break;
#pragma unroll 1
        for (int s = 0; s < p.slices; s += kAtOnce) {
            float4 part[kAtOnce][kColumnTiles];
#pragma unroll
            for (int i = 0; i < kAtOnce; ++i) {
#pragma unroll
                for (int c = 0; c < kColumnTiles; ++c) {
                    part[i][c] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
                    if (s + i < p.slices) part[i][c] = __ldcg(parts + r * stride + (s + i) * kPart + c * 32);
                }
            }
#pragma unroll
            for (int i = 0; i < kAtOnce; ++i) {
#pragma unroll
                for (int c = 0; c < kColumnTiles; ++c) {
                    acc[r][c][0] += part[i][c].x;
                    acc[r][c][1] += part[i][c].y;
                    acc[r][c][2] += part[i][c].z;
                    acc[r][c][3] += part[i][c].w;
                }
            }
        }
    }
    return true;
}

struct Ring {
    word start;
    int stage;
    word parity;

    __device__ __forceinline__ void advance() {
        if (++stage == STAGES) {
            stage = 0;
            parity ^= 1;
        }
    }
};

template <bool ALL>
INLINE void multiply_stages(const Share& share, const Lane& lane, int num_mine, const Barriers& barriers, Ring& ring,
                            Tile (&acc)[kWarpBands]) {
    for (int first = share.first_tile; first < share.end_tile; first += K_TILES) {
        int num_tiles = min(K_TILES, share.end_tile - first);
        barrier_wait(barriers.weights + 8 * ring.stage, ring.parity);
        barrier_wait(barriers.x + 8 * ring.stage, ring.parity);
        word stage = ring.start + ring.stage * kStageBytes;
        for (int tile = lane.warp_k; tile < num_tiles; tile += WARPS_K) {
            multiply_tile<ALL>(stage, tile, lane, num_mine, acc);
        }
        warp_arrive(barriers.empty + 8 * ring.stage, lane.index);
        ring.advance();
    }
}

INLINE void consume(const Problem& p, const Share& share, const Lane& lane, Ring ring, const Barriers& barriers, float4* sums,
                    const float4* escapes, int slice) {
    for (int group = 0; group < share.num_groups; ++group) {
        int first_band = share.group_start(group) + lane.warp_n;
        int num_mine = max(0, (share.group_start(group + 1) - first_band + WARPS_N - 1) / WARPS_N);
        Band bands[kWarpBands];
        Tile acc[kWarpBands];
#pragma unroll
        for (int r = 0; r < kWarpBands; ++r) {
            if (r < num_mine) bands[r] = Band::of(p, lane, first_band + r * WARPS_N);
#pragma unroll
            for (int c = 0; c < kColumnTiles; ++c) acc[r][c][0] = acc[r][c][1] = acc[r][c][2] = acc[r][c][3] = 0.0f;
        }
        if (group == 0) wait_for_predecessor();
        if (num_mine == kWarpBands) {
            multiply_stages<true>(share, lane, num_mine, barriers, ring, acc);
        } else {
            multiply_stages<false>(share, lane, num_mine, barriers, ring, acc);
        }
        add_warps(lane, sums, num_mine, acc);
        if (lane.warp_k > 0) continue;
        add_escapes(lane, escapes, group, num_mine, barriers, acc);
        if (!add_slices(p, lane, first_band, slice, num_mine, acc)) continue;
#pragma unroll
        for (int r = 0; r < kWarpBands; ++r) {
            if (r < num_mine) write_band(p, lane, bands[r], acc[r]);
        }
    }
}

extern "C" __global__ void __launch_bounds__(kThreads, MIN_BLOCKS) w12_gemm(const Problem p) {
    extern __shared__ __align__(128) byte memory[];
    word ring = shared_address(memory);
    Barriers barriers = Barriers::at(ring + kBarrierOffset);
    if (threadIdx.x == 0) {
        barriers.init();
#if __CUDA_ARCH__ >= 900
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
    }
    __syncthreads();
    let_successor_start();
    int part = blockIdx.x % p.parts, slice = blockIdx.x / p.parts;
    Share share = Share::of(p, part, slice);
    int warp = threadIdx.x / 32, index = threadIdx.x % 32;
    float4* sums = (float4*)(memory + STAGES * kStageBytes);
    float4* escapes = (float4*)(memory + STAGES * kStageBytes + kSumBytes);
    Lane lane = {index, index / 4, index % 4, warp % WARPS_N, warp / WARPS_N};
    if (warp < kConsumers) {
        consume(p, share, lane, Ring{ring, 0, 0}, barriers, sums, escapes, slice);
    } else if (warp == kConsumers) {
        produce<true>(p, share, ring, barriers, index);
    } else if (warp == kConsumers + 1) {
        produce<false>(p, share, ring, barriers, index);
    } else {
        sum_escapes(p, share, lane, slice, warp - kConsumers - 2, barriers, escapes);
    }
}
