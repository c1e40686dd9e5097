/* What a step does to rows of bfloat16 between its products, computed in float32 and rounded once.

Each row is computed alone, so its bits do not depend on the other rows.
*/
#include "vectors.h"

enum { ALONE = 1 << 16 };  /* numbers that are not worth a second thread */

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
        Vector squares = same(0);
        for (int64_t i = 0; i < width; i += LANES) {
            const Vector some = some_floats_of(from + i, width - i);
            squares = plus_product(squares, some, some);
        }
        const Vector scale = same(1 / __builtin_sqrtf(sum_of(squares) / width + eps));
        for (int64_t i = 0; i < width; i += LANES) {
            const Vector some = some_floats_of(from + i, width - i) * scale;
            round_some_to(out + row * width + i, some * load_some(by + i, width - i), width - i);
        }
    }
}

/* silu(gate) * up, of rows of gates and then as many others. */
void gated(const uint16_t *x, int64_t rows, int64_t width, uint16_t *out, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1 && rows * width > ALONE)
    for (int64_t row = 0; row < rows; row++) {
        const uint16_t *gates = x + row * 2 * width;
        for (int64_t i = 0; i < width; i += LANES) {
            const Vector gate = some_floats_of(gates + i, width - i);
            const Vector up = some_floats_of(gates + width + i, width - i);
            const Vector silu = gate / (same(1) + exponential(same(0) - gate));
            round_some_to(out + row * width + i, silu * up, width - i);
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
            const int64_t rest = half - i;
            const Vector cos_a = some_floats_of(cos + i, rest), cos_b = some_floats_of(cos + half + i, rest);
            const Vector sin_a = some_floats_of(sin + i, rest), sin_b = some_floats_of(sin + half + i, rest);
            for (int64_t head = 0; head < heads; head++) {
                uint16_t *at = x + token * apart + head * next + i;
                const Vector a = some_floats_of(at, rest), b = some_floats_of(at + half, rest);
                round_some_to(at, plus_product(a * cos_a, b, sin_a), rest);
                round_some_to(at + half, plus_product(b * cos_b, a, sin_b), rest);
            }
        }
    }
}
