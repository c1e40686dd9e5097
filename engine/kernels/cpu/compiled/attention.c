/* Attention of rows of one token over their cached keys and values, in bfloat16 with sums in float32.

Each row is computed alone, and its context is read in tiles of positions: neither the other rows, nor the places
of its blocks, nor the number of threads change a bit.
*/
#include "vectors.h"
#include <string.h>

enum { TILE = 128, ALONE = 1 << 17 };  /* ALONE: multiplications that are not worth a second thread */

typedef struct {  /* of a step */
    const int64_t *places;    /* of each token: where its key and value are written */
    const int32_t *tables;    /* of each row: its blocks */
    const int32_t *contexts;  /* of each row: how many tokens it sees, itself included */
    int64_t tokens, rows, width, block;  /* width: blocks of a row of the tables; block: tokens, whole sixteens */
    int64_t total;            /* of the contexts of the rows */
} Step;

typedef struct {  /* of a layer */
    int64_t heads, kv_heads, key_dim, value_dim, window;  /* window: 0 if there is none */
    float scale;
} Layer;

/* The sums of 16 vectors. */
ALWAYS __m512 sums_of(const __m512 *x) {
    __m512 two[8], four[4];
    UNROLL for (int n = 0; n < 8; n++) {
        const __m512 a = x[2 * n], b = x[2 * n + 1];
        two[n] = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
    }
    UNROLL for (int n = 0; n < 4; n++) {
        const __m512d a = _mm512_castps_pd(two[2 * n]), b = _mm512_castps_pd(two[2 * n + 1]);
        const __m512d low = _mm512_unpacklo_pd(a, b), high = _mm512_unpackhi_pd(a, b);
        four[n] = _mm512_add_ps(_mm512_castpd_ps(low), _mm512_castpd_ps(high));
    }
#define FOLDED(A, B) _mm512_add_ps(_mm512_shuffle_f32x4(A, B, 0x88), _mm512_shuffle_f32x4(A, B, 0xdd))
    return FOLDED(FOLDED(four[0], four[1]), FOLDED(four[2], four[3]));
}

/* The products of a query with the keys of 16 tokens. `apart`: from one key to the next. */
ALWAYS __m512 scores_of(const uint16_t *query, const uint16_t *key, int64_t apart, int64_t dim) {
    __m512 sum[LANES];
    UNROLL for (int n = 0; n < LANES; n++) sum[n] = _mm512_setzero_ps();
    for (int64_t i = 0; i < dim; i += 2 * LANES) {
        const __mmask32 there = dim - i < 2 * LANES ? (1u << (dim - i)) - 1 : 0xffffffff;
        const __m512bh part = (__m512bh)_mm512_maskz_loadu_epi16(there, query + i);
        UNROLL for (int n = 0; n < LANES; n++)
            sum[n] = _mm512_dpbf16_ps(sum[n], part, (__m512bh)_mm512_maskz_loadu_epi16(there, key + n * apart + i));
    }
    return sums_of(sum);
}

/* Scores become weights, relative to the largest score so far. Returns what earlier sums are multiplied by.

The tokens are those from `low` to `high`, of which `weight` begins with the sixteen that holds the first. */
ALWAYS float weigh(float *weight, int64_t low, int64_t high, float *most, float *total) {
    __m512 largest = _mm512_set1_ps(*most), sum = _mm512_setzero_ps();
    for (int64_t t = 0; t < high; t += LANES)
        largest = _mm512_mask_max_ps(largest, up_to(high - t) & ~up_to(low - t), largest, _mm512_loadu_ps(weight + t));
    const float top = _mm512_reduce_max_ps(largest);
    const float by = _mm512_cvtss_f32(exponential(_mm512_set1_ps(*most - top)));
    for (int64_t t = 0; t < high; t += LANES) {
        const __m512 power = exponential(_mm512_sub_ps(_mm512_loadu_ps(weight + t), _mm512_set1_ps(top)));
        const __m512 each = _mm512_maskz_mov_ps(up_to(high - t) & ~up_to(low - t), power);
        sum = _mm512_add_ps(sum, each);
        _mm512_storeu_ps(weight + t, each);
    }
    *total = *total * by + _mm512_reduce_add_ps(sum);
    *most = top;
    return by;
}

/* Add the weighted values of some tokens to the sums of some heads, which are multiplied by `by` before.

`apart`: from one head's weights to the next; `next`: from one head's sums to the next. */
ALWAYS void add_values(const int heads, const int wide, const float *weight, int64_t apart, const float *by,
                       const uint16_t *const *value, int64_t low, int64_t high, int64_t i, float *out, int64_t next) {
    __m512 sum[4][4];
    UNROLL for (int h = 0; h < heads; h++)
        UNROLL for (int n = 0; n < wide; n++)
            sum[h][n] = _mm512_mul_ps(_mm512_loadu_ps(out + h * next + i + n * LANES), _mm512_set1_ps(by[h]));
    for (int64_t t = low; t < high; t++)
        UNROLL for (int n = 0; n < wide; n++) {
            const __m512 some = floats_of(value[t] + i + n * LANES);
            UNROLL for (int h = 0; h < heads; h++)
                sum[h][n] = _mm512_fmadd_ps(some, _mm512_set1_ps(weight[h * apart + t]), sum[h][n]);
        }
    UNROLL for (int h = 0; h < heads; h++)
        UNROLL for (int n = 0; n < wide; n++) _mm512_storeu_ps(out + h * next + i + n * LANES, sum[h][n]);
}

/* Some key heads of a row, and the heads that share each. A tile's keys of all of them are near each other. */
static void attend_heads(const Step *step, const Layer *layer, int64_t row, int64_t kv_heads, const uint16_t *q,
                         const uint16_t *keys, const uint16_t *values, const uint16_t *sinks, uint16_t *out) {
    const int64_t group = layer->heads / layer->kv_heads, dim = layer->key_dim, wide = layer->value_dim;
    const int64_t key_apart = layer->kv_heads * dim, value_apart = layer->kv_heads * wide, heads = kv_heads * group;
    const int64_t end = step->contexts[row];
    const int64_t start = layer->window && end > layer->window ? end - layer->window : 0;
    const int32_t *table = step->tables + row * step->width;
    float sum[heads][wide], weight[group][TILE], by[group], most[heads], total[heads];
    memset(sum, 0, sizeof sum);
    for (int64_t h = 0; h < heads; h++) {
        const uint32_t sink = sinks ? (uint32_t)sinks[h] << 16 : 0xff800000;  /* minus infinity */
        memcpy(&most[h], &sink, 4);
        total[h] = sinks != 0;
    }
    for (int64_t tile = start / TILE * TILE; tile < end; tile += TILE) {
        const int64_t first = tile > start ? tile : start / LANES * LANES;  /* each sixteen is in one block */
        const int64_t low = start > first ? start - first : 0, high = (tile + TILE < end ? tile + TILE : end) - first;
        int64_t place[TILE / LANES];
        for (int64_t t = 0; t < high; t += LANES)
            place[t / LANES] = table[(first + t) / step->block] * step->block + (first + t) % step->block;
        for (int64_t head = 0; head < kv_heads; head++) {
            const uint16_t *value[TILE];
            for (int64_t t = 0; t < high; t += LANES) {
                const int64_t at = place[t / LANES];
                for (int64_t n = 0; n < LANES; n++) value[t + n] = values + (at + n) * value_apart + head * wide;
                for (int64_t g = 0; g < group; g++) {
                    const uint16_t *query = q + (head * group + g) * dim, *key = keys + at * key_apart + head * dim;
                    const __m512 scores = scores_of(query, key, key_apart, dim);
                    _mm512_storeu_ps(weight[g] + t, _mm512_mul_ps(scores, _mm512_set1_ps(layer->scale)));
                }
            }
            const int64_t own = head * group;
            for (int64_t g = 0; g < group; g++)
                by[g] = weigh(weight[g], low, high, &most[own + g], &total[own + g]);
#define ADD(HEADS, WIDE) add_values(HEADS, WIDE, weight[g], TILE, by + g, value, low, high, i, sum[own + g], wide)
#define EACH_HEAD(WIDE) do { \
                int64_t g = 0; \
                for (; g + 4 <= group; g += 4) ADD(4, WIDE); \
                for (; g < group; g++) ADD(1, WIDE); \
            } while (0)
            int64_t i = 0;
            for (; i + 4 * LANES <= wide; i += 4 * LANES) EACH_HEAD(4);
            for (; i < wide; i += LANES) EACH_HEAD(1);
        }
    }
    for (int64_t h = 0; h < heads; h++)
        for (int64_t i = 0; i < wide; i += LANES) {
            const __m512 mean = _mm512_div_ps(_mm512_loadu_ps(sum[h] + i), _mm512_set1_ps(total[h]));
            _mm256_storeu_si256((__m256i *)(out + h * wide + i), rounded(mean));
        }
}

/* Write the keys and values of all tokens, and attend for the first `rows`, which have one token each.

`apart`: numbers from one token to the next, of queries, keys and values. `sinks`: of each head, or null. */
void attend(const Step *step, const Layer *layer, const uint16_t *q, const uint16_t *k, const uint16_t *v,
            int64_t q_apart, int64_t k_apart, int64_t v_apart, uint16_t *keys, uint16_t *values,
            const uint16_t *sinks, uint16_t *out, int threads) {
    const int64_t kv_heads = layer->kv_heads, group = layer->heads / kv_heads;
    const int64_t key = kv_heads * layer->key_dim, value = kv_heads * layer->value_dim;
    for (int64_t t = 0; t < step->tokens; t++) {
        memcpy(keys + step->places[t] * key, k + t * k_apart, 2 * key);
        memcpy(values + step->places[t] * value, v + t * v_apart, 2 * value);
    }
    const int64_t work = step->total * layer->heads * (layer->key_dim + layer->value_dim);
    const int64_t together = step->rows < threads ? 1 : kv_heads, parts = kv_heads / together;
#pragma omp parallel for num_threads(threads) schedule(dynamic) if (threads > 1 && work > ALONE)
    for (int64_t n = 0; n < step->rows * parts; n++) {
        const int64_t row = n / parts, head = n % parts, first = head * group;
        attend_heads(step, layer, row, together, q + row * q_apart + first * layer->key_dim,
                     keys + head * layer->key_dim, values + head * layer->value_dim, sinks ? sinks + first : sinks,
                     out + (row * layer->heads + first) * layer->value_dim);
    }
}
