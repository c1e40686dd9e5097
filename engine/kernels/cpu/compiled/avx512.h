/* The vectors of a CPU with AVX-512. */

enum { LANES = 16 };
typedef __m512 Vector;
typedef __mmask16 Mask;

ALWAYS Vector same(float x) { return _mm512_set1_ps(x); }
ALWAYS Vector load(const float *x) { return _mm512_loadu_ps(x); }
ALWAYS void store(float *at, Vector x) { _mm512_storeu_ps(at, x); }

/* Of two numbers of which one is NaN, the second. */
ALWAYS Vector larger(Vector a, Vector b) { return _mm512_max_ps(a, b); }
ALWAYS Vector smaller(Vector a, Vector b) { return _mm512_min_ps(a, b); }

/* sum + a * b and sum - a * b, rounded once */
ALWAYS Vector plus_product(Vector sum, Vector a, Vector b) { return _mm512_fmadd_ps(a, b, sum); }
ALWAYS Vector less_product(Vector sum, Vector a, Vector b) { return _mm512_fnmadd_ps(a, b, sum); }

ALWAYS Vector nearest(Vector x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT); }
ALWAYS Vector scaled(Vector x, Vector power) { return _mm512_scalef_ps(x, power); } /* x * 2^power */

ALWAYS float first_of(Vector x) { return _mm512_cvtss_f32(x); }
ALWAYS float sum_of(Vector x) { return _mm512_reduce_add_ps(x); }
ALWAYS float largest_of(Vector x) { return _mm512_reduce_max_ps(x); }

/* The first `count` numbers. */
ALWAYS Mask up_to(int64_t count) { return count >= LANES ? 0xffff : count <= 0 ? 0 : (1u << count) - 1; }
ALWAYS Mask between(int64_t low, int64_t high) { return up_to(high) & ~up_to(low); }
ALWAYS Vector choose(Mask which, Vector these, Vector others) { return _mm512_mask_mov_ps(others, which, these); }

ALWAYS Vector load_some(const float *x, int64_t count) { return _mm512_maskz_loadu_ps(up_to(count), x); }

ALWAYS Vector widened(__m256i x) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
}

ALWAYS Vector floats_of(const uint16_t *x) { return widened(_mm256_loadu_si256((const __m256i *)x)); }

ALWAYS Vector some_floats_of(const uint16_t *x, int64_t count) {
    return widened(_mm256_maskz_loadu_epi16(up_to(count), x));
}

ALWAYS __m256i rounded(Vector x) { /* to the nearest bfloat16, ties to even */
    __m512i bits = _mm512_castps_si512(x);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    bits = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    bits = _mm512_mask_mov_epi32(bits, nan, _mm512_set1_epi32(0x7fc00000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(bits, 16));
}

ALWAYS void round_to(uint16_t *at, Vector x) { _mm256_storeu_si256((__m256i *)at, rounded(x)); }

ALWAYS void round_some_to(uint16_t *at, Vector x, int64_t count) {
    _mm256_mask_storeu_epi16(at, up_to(count), rounded(x));
}

/* The sums of LANES vectors. */
ALWAYS Vector sums_of(const Vector *x) {
    Vector two[8], four[4];
    UNROLL for (int n = 0; n < 8; n++) {
        const Vector a = x[2 * n], b = x[2 * n + 1];
        two[n] = _mm512_unpacklo_ps(a, b) + _mm512_unpackhi_ps(a, b);
    }
    UNROLL for (int n = 0; n < 4; n++) {
        const __m512d a = _mm512_castps_pd(two[2 * n]), b = _mm512_castps_pd(two[2 * n + 1]);
        const __m512d low = _mm512_unpacklo_pd(a, b), high = _mm512_unpackhi_pd(a, b);
        four[n] = _mm512_castpd_ps(low) + _mm512_castpd_ps(high);
    }
#define FOLDED(A, B) (_mm512_shuffle_f32x4(A, B, 0x88) + _mm512_shuffle_f32x4(A, B, 0xdd))
    const Vector a = FOLDED(four[0], four[1]), b = FOLDED(four[2], four[3]);
    return FOLDED(a, b);
}
