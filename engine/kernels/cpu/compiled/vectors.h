/* Vectors of 16 numbers: bfloat16 in memory, float32 in registers. */
#include "panels.h"
#include <immintrin.h>

enum { LANES = 16 };

ALWAYS __m512 widened(__m256i x) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
}

ALWAYS __m512 floats_of(const uint16_t *x) { return widened(_mm256_loadu_si256((const __m256i *)x)); }

/* The first `count` of 16 numbers. */
ALWAYS __mmask16 up_to(int64_t count) { return count >= LANES ? 0xffff : count <= 0 ? 0 : (1u << count) - 1; }

ALWAYS __m256i rounded(__m512 x) {  /* to the nearest bfloat16, ties to even */
    __m512i bits = _mm512_castps_si512(x);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    bits = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    bits = _mm512_mask_mov_epi32(bits, nan, _mm512_set1_epi32(0x7fc00000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(bits, 16));
}

/* e^x for x up to 88, within 2 units of the last place; NaN stays NaN. */
ALWAYS __m512 exponential(__m512 x) {
    x = _mm512_max_ps(_mm512_set1_ps(-104), x);  /* in this order, NaN is kept */
    const __m512 whole = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), _MM_FROUND_TO_NEAREST_INT);
    /* ln 2 in two parts, of which the first has few bits */
    __m512 rest = _mm512_fnmadd_ps(whole, _mm512_set1_ps(0.693359375f), x);
    rest = _mm512_fnmadd_ps(whole, _mm512_set1_ps(-2.12194440e-4f), rest);
    static const float taylor[] = {1.f / 720, 1.f / 120, 1.f / 24, 1.f / 6, 0.5f, 1, 1};
    __m512 sum = _mm512_set1_ps(1.f / 5040);
    UNROLL for (int n = 0; n < 7; n++) sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(taylor[n]));
    return _mm512_scalef_ps(sum, whole);
}
