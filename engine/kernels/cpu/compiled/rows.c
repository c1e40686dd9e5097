/* What a step does to rows of bfloat16 between its products, computed in float32 and rounded once.

Each row is computed alone, so its bits do not depend on the other rows.
*/
#include "vectors.h"

enum { ALONE = 1 << 16 };  /* numbers that are not worth a second thread */

ALWAYS __m512 some_of(const uint16_t *x, __mmask16 there) { return widened(_mm256_maskz_loadu_epi16(there, x)); }

ALWAYS void store(uint16_t *x, __mmask16 there, __m512 numbers) {
    _mm256_mask_storeu_epi16(x, there, rounded(numbers));
}

/* The RMS norm of each head of each token, times a weight, of each head if `by_head`.

`apart`: numbers from one token to the next. */
void norm(const uint16_t *x, int64_t apart, int64_t tokens, int64_t heads, int64_t width, const float *weight,
          int by_head, float eps, uint16_t *out, int threads) {
    const int64_t rows = tokens * heads;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1 && rows * width > ALONE)
    for (int64_t row = 0; row < rows; row++) {
        const int64_t head = row % heads;
        const uint16_t *from = x + row / heads * apart + head * width;
        const float *by = weight + (by_head ? head * width : 0);
        __m512 squares = _mm512_setzero_ps();
        for (int64_t i = 0; i < width; i += LANES) {
            const __m512 some = some_of(from + i, up_to(width - i));
            squares = _mm512_fmadd_ps(some, some, squares);
        }
        const __m512 scale = _mm512_set1_ps(1 / __builtin_sqrtf(_mm512_reduce_add_ps(squares) / width + eps));
        for (int64_t i = 0; i < width; i += LANES) {
            const __mmask16 there = up_to(width - i);
            const __m512 some = _mm512_mul_ps(some_of(from + i, there), scale);
            store(out + row * width + i, there, _mm512_mul_ps(some, _mm512_maskz_loadu_ps(there, by + i)));
        }
    }
}

/* silu(gate) * up, of rows of gates and then as many others. */
void gated(const uint16_t *x, int64_t rows, int64_t width, uint16_t *out, int threads) {
    const __m512 one = _mm512_set1_ps(1);
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1 && rows * width > ALONE)
    for (int64_t row = 0; row < rows; row++) {
        const uint16_t *gates = x + row * 2 * width;
        for (int64_t i = 0; i < width; i += LANES) {
            const __mmask16 there = up_to(width - i);
            const __m512 gate = some_of(gates + i, there), up = some_of(gates + width + i, there);
            const __m512 power = exponential(_mm512_sub_ps(_mm512_setzero_ps(), gate));
            const __m512 silu = _mm512_div_ps(gate, _mm512_add_ps(one, power));
            store(out + row * width + i, there, _mm512_mul_ps(silu, up));
        }
    }
}

/* Rotate pairs (x[i], x[i + half]) of each head of each token, in place, by 2 * half cosines and signed sines.

`apart`: numbers from one token to the next; `next`: from one head to the next; `on`: of cosines and of sines. */
void rotate(uint16_t *x, int64_t apart, int64_t next, int64_t tokens, int64_t heads, const uint16_t *cosines,
            const uint16_t *sines, int64_t on, int64_t half, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1 && tokens * heads * half > ALONE)
    for (int64_t token = 0; token < tokens; token++) {
        const uint16_t *cos = cosines + token * on, *sin = sines + token * on;
        for (int64_t i = 0; i < half; i += LANES) {
            const __mmask16 there = up_to(half - i);
            const __m512 cos_a = some_of(cos + i, there), cos_b = some_of(cos + half + i, there);
            const __m512 sin_a = some_of(sin + i, there), sin_b = some_of(sin + half + i, there);
            for (int64_t head = 0; head < heads; head++) {
                uint16_t *at = x + token * apart + head * next + i;
                const __m512 a = some_of(at, there), b = some_of(at + half, there);
                store(at, there, _mm512_fmadd_ps(b, sin_a, _mm512_mul_ps(a, cos_a)));
                store(at + half, there, _mm512_fmadd_ps(a, sin_b, _mm512_mul_ps(b, cos_b)));
            }
        }
    }
}
