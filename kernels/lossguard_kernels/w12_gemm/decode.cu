// W12 back to bf16, bit for bit: what the products of many rows use before cuBLAS, and what verifies the packing.

typedef unsigned char byte;
typedef unsigned short half_word;
typedef unsigned int word;

struct Source {
    const byte* hi;          // [bands, tiles, 16, 64]
    const byte* lo;          // [bands, tiles, 16, 32], or null to read HI alone
    const byte* base;        // [1] or [16 * bands]
    const int* escape_start;
    const int* escape_place;
    const half_word* escape_bits;
    half_word* dense;        // [rows, columns]
    int bands, k_tiles, rows, columns, base_step;
};

static __device__ __forceinline__ word times(word pair, word factor) {
    word product;  // plus -0, which changes no number, not even +0
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(product) : "r"(pair), "r"(factor), "r"(0x80008000u));
    return product;
}

static __device__ __forceinline__ word power_of_two(int exponent) {
    return (word)(127 + exponent) << 7 << 16 | (word)(127 + exponent) << 7;
}

// Four records -> four bf16 numbers 2^-base times the weights (gemm.cu), times 2^base in two exact steps.
static __device__ __forceinline__ void decode(word hi, word lo, word first, word second, word* out) {
    word lower = (hi << 4 & 0xF0F0F0F0u) | (lo & 0x0F0F0F0Fu);
    word upper = (hi & 0x80808080u) | (hi >> 4 & 0x07070707u);
    out[0] = times(times(__byte_perm(lower, upper, 0x5140), first), second);
    out[1] = times(times(__byte_perm(lower, upper, 0x7362), first), second);
}

// A thread decodes 16 neighbouring columns of one row.
extern "C" __global__ void __launch_bounds__(256) w12_decode(const Source s) {
    long long piece = (long long)blockIdx.x * 256 + threadIdx.x;
    if (piece >= (long long)s.bands * s.k_tiles * 64) return;
    long long tile = piece / 64;
    int row = (int)(tile / s.k_tiles) * 16 + (int)(piece % 64) / 4;
    int column = (int)(tile % s.k_tiles) * 64 + (int)(piece % 4) * 16;
    if (row >= s.rows || column >= s.columns) return;
    uint4 hi = ((const uint4*)s.hi)[piece];
    uint2 lo = s.lo ? ((const uint2*)s.lo)[piece] : make_uint2(0, 0);
    int base = s.base[row * s.base_step];
    word first = power_of_two(base / 2), second = power_of_two(base - base / 2);
    word out[8];
    decode(hi.x, lo.x, first, second, out + 0);
    decode(hi.y, lo.x >> 4, first, second, out + 2);
    decode(hi.z, lo.y, first, second, out + 4);
    decode(hi.w, lo.y >> 4, first, second, out + 6);
    half_word* target = s.dense + (long long)row * s.columns + column;
    if (s.columns % 16 == 0) {
        ((uint4*)target)[0] = make_uint4(out[0], out[1], out[2], out[3]);
        ((uint4*)target)[1] = make_uint4(out[4], out[5], out[6], out[7]);
        return;
    }
    for (int i = 0; i < 16; ++i) {
        if (column + i < s.columns) target[i] = (half_word)(out[i / 2] >> 16 * (i % 2));
    }
}

// A block writes the escapes of one band; it follows w12_decode on the stream.
extern "C" __global__ void __launch_bounds__(128) w12_patch(const Source s) {
    int band = blockIdx.x;
    for (int entry = s.escape_start[band] + threadIdx.x; entry < s.escape_start[band + 1]; entry += 128) {
        int place = s.escape_place[entry];
        long long row = 16 * (long long)band + (place >> 24 & 15);
        s.dense[row * s.columns + (place & 0xFFFFFF)] = s.escape_bits[entry];
    }
}
