/* Products of rows of bfloat16 with a weight of bfloat16, for a CPU without instructions for it.

The panels are those of products.c for 16 bits: two inputs of each of 32 outputs at a time. Numbers become
float32, which is bfloat16 with 16 more bits. Each row is summed alone and always in the same order, so its
bits do not depend on the other rows.
*/
#include "panels.h"
#include <stdlib.h>

enum { VECTORS = 4, PANEL = VECTORS * LANES };
enum { MOST = 6, FEW = 3 };  /* rows whose sums of half a panel, or of a whole one, fit the registers */
enum { TILE = 96 };          /* rows that pass a panel while it is cached */

/* `count` vectors of outputs, from the vector `first` of a panel on, for some rows. */
ALWAYS void outputs_of(const int rows, const int count, const Weight *weight, int64_t panel, int first, const float *x,
                       uint16_t *out) {
    const int64_t inputs = weight->inputs;
    const uint8_t *at = weight->panels + panel * inputs * PANEL * 2 + first * LANES * 4;
    const Vector high = _mm256_castsi256_ps(_mm256_set1_epi32(0xffff0000));
    Vector sum[FEW * VECTORS];
    UNROLL for (int n = 0; n < rows * count; n++) sum[n] = same(0);
    for (int64_t i = 0; i < inputs; i += 2, at += 4 * PANEL)
        UNROLL for (int second = 0; second < 2; second++) {
            Vector part[VECTORS];
            UNROLL for (int v = 0; v < count; v++) {
                __m256i both = _mm256_loadu_si256((const __m256i *)(at + v * LANES * 4));
                part[v] = second ? _mm256_and_ps(_mm256_castsi256_ps(both), high)
                                 : _mm256_castsi256_ps(_mm256_slli_epi32(both, 16));
            }
            UNROLL for (int r = 0; r < rows; r++) {
                const Vector value = _mm256_broadcast_ss(x + r * inputs + i + second);
                UNROLL for (int v = 0; v < count; v++)
                    sum[r * count + v] = plus_product(sum[r * count + v], part[v], value);
            }
        }
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int v = 0; v < count; v++)
            write_outputs(sum[r * count + v], weight, panel * PANEL + (first + v) * LANES, out + r * weight->outputs);
}

static void tile(const Weight *weight, const float *x, int64_t rows, uint16_t *out, int threads) {
    const int64_t inputs = weight->inputs, panels = (weight->outputs + PANEL - 1) / PANEL;
    const int64_t blocks = (rows + MOST - 1) / MOST;
#define WHOLE(N) case N: outputs_of(N, VECTORS, weight, p, 0, from, to); break;
#define HALVES(N) \
    case N: \
        outputs_of(N, VECTORS / 2, weight, p, 0, from, to); \
        outputs_of(N, VECTORS / 2, weight, p, VECTORS / 2, from, to); \
        break;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t p = 0; p < panels; p++)
        for (int64_t b = 0; b < blocks; b++) {
            const int64_t first = start_of(b, rows, MOST);
            const float *from = x + first * inputs;
            uint16_t *to = out + first * weight->outputs;
            switch (start_of(b + 1, rows, MOST) - first) {
                WHOLE(1) WHOLE(2) WHOLE(3) HALVES(4) HALVES(5) HALVES(6)
            }
        }
}

/* out = x @ weight.T + bias. Returns whether it failed, for lack of memory. */
int product(const Weight *weight, const uint16_t *x, int64_t rows, uint16_t *out, int threads) {
    const int64_t inputs = weight->inputs, most = rows < TILE ? rows : TILE;
    float *wide = malloc((most * inputs + LANES) * sizeof(float)); /* whole vectors */
    if (!wide) return 1;
    for (int64_t at = 0; at < rows; at += TILE) {
        int64_t some = rows - at < TILE ? rows - at : TILE;
        const uint16_t *from = x + at * inputs;
        const int64_t count = some * inputs;
        for (int64_t n = 0; n < count; n += LANES) store(wide + n, some_floats_of(from + n, count - n));
        tile(weight, wide, some, out + at * weight->outputs, threads);
    }
    free(wide);
    return 0;
}
