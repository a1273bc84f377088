// y = x W^T with W in W12: weights stream through shared memory once and become bf16 in registers.
//
// A block owns a range of bands (16 rows of W) and, with split-K, a slice of the columns. Two producer warps (memory.cu, which comes
// before this file) keep a ring of STAGES filled, one with weights by bulk copies (cp.async before sm_90), one with x; WARPS_N x
// WARPS_K consumer warps decode and multiply with mma.m16n8k16, weights as A and x as B; the rest add up the escapes.
// docs/w12-gemm.md derives every step.

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
