/* The vectors of a CPU with AVX2. */

enum { LANES = 8 };
typedef __m256 Vector;
typedef __m256 Mask; /* of each number, the sign */

ALWAYS Vector same(float x) { return _mm256_set1_ps(x); }
ALWAYS Vector load(const float *x) { return _mm256_loadu_ps(x); }
ALWAYS void store(float *at, Vector x) { _mm256_storeu_ps(at, x); }

/* Of two numbers of which one is NaN, the second. */
ALWAYS Vector larger(Vector a, Vector b) { return _mm256_max_ps(a, b); }
ALWAYS Vector smaller(Vector a, Vector b) { return _mm256_min_ps(a, b); }

/* sum + a * b and sum - a * b, rounded once */
ALWAYS Vector plus_product(Vector sum, Vector a, Vector b) { return _mm256_fmadd_ps(a, b, sum); }
ALWAYS Vector less_product(Vector sum, Vector a, Vector b) { return _mm256_fnmadd_ps(a, b, sum); }

ALWAYS Vector nearest(Vector x) {
    return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

ALWAYS Vector scaled(Vector x, Vector power) { /* x * 2^power, which is from -126 to 127 */
    const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(power), _mm256_set1_epi32(127));
    return x * _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23));
}

ALWAYS float first_of(Vector x) { return _mm256_cvtss_f32(x); }

ALWAYS float sum_of(Vector x) {
    __m128 four = _mm256_castps256_ps128(x) + _mm256_extractf128_ps(x, 1);
    four = four + _mm_movehl_ps(four, four);
    return _mm_cvtss_f32(four + _mm_movehdup_ps(four));
}

ALWAYS float largest_of(Vector x) {
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    four = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ps(four, _mm_movehdup_ps(four)));
}

ALWAYS __m256i up_to(int64_t count) { /* the first numbers */
    const __m256i most = _mm256_set1_epi32(count < 0 ? 0 : count < LANES ? count : LANES);
    return _mm256_cmpgt_epi32(most, _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

ALWAYS Mask between(int64_t low, int64_t high) {
    return _mm256_castsi256_ps(_mm256_andnot_si256(up_to(low), up_to(high)));
}

ALWAYS Vector choose(Mask which, Vector these, Vector others) { return _mm256_blendv_ps(others, these, which); }

ALWAYS Vector load_some(const float *x, int64_t count) { return _mm256_maskload_ps(x, up_to(count)); }

ALWAYS Vector floats_of(const uint16_t *x) {
    const __m128i some = _mm_loadu_si128((const __m128i *)x);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(some), 16));
}

ALWAYS Vector some_floats_of(const uint16_t *x, int64_t count) {
    if (count >= LANES) return floats_of(x);
    uint16_t some[LANES] = {0};
    memcpy(some, x, count * sizeof *x);
    return floats_of(some);
}

ALWAYS void round_to(uint16_t *at, Vector x) { /* to the nearest bfloat16, ties to even */
    __m256i bits = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    bits = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    bits = _mm256_srli_epi32(_mm256_blendv_epi8(bits, _mm256_set1_epi32(0x7fc00000), nan), 16);
    const __m128i both = _mm_packus_epi32(_mm256_castsi256_si128(bits), _mm256_extracti128_si256(bits, 1));
    _mm_storeu_si128((__m128i *)at, both);
}

ALWAYS void round_some_to(uint16_t *at, Vector x, int64_t count) {
    if (count >= LANES) {
        round_to(at, x);
    } else if (count > 0) {
        uint16_t some[LANES];
        round_to(some, x);
        memcpy(at, some, count * sizeof *at);
    }
}

/* The sums of LANES vectors. */
ALWAYS Vector sums_of(const Vector *x) {
    Vector four[2];
    UNROLL for (int n = 0; n < 2; n++) {
        const Vector *of = x + 4 * n;
        four[n] = _mm256_hadd_ps(_mm256_hadd_ps(of[0], of[1]), _mm256_hadd_ps(of[2], of[3]));
    }
    return _mm256_permute2f128_ps(four[0], four[1], 0x20) + _mm256_permute2f128_ps(four[0], four[1], 0x31);
}
