// The first half of the kernel's source: parameters, barriers and copies, shares of the work, and the warps that bring weights and x.
// gemm.cu follows it in one compilation (program.py) and says what the whole does.
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
// Stages of weights on their way at a time: enough for the bandwidth. More would only lengthen the queue before memory, and with
// it every other access: x, escapes, partial sums.
constexpr int kWindow = 2;
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
