/* Attention of tokens over their cached keys and values, in bfloat16 with sums in float32.

Each token is computed alone, and its context is read in tiles of positions: neither the other rows, nor the places
of its blocks, nor the number of threads change a bit.
*/
#include "vectors.h"
#include <stdlib.h>

enum { TILE = 128, ALONE = 1 << 17 };      /* ALONE: multiplications that are not worth a second thread */
enum { TOGETHER = 8 };                     /* tokens of a row that share what is read */
enum { MOST = LANES / 4, WIDE = 4 };       /* heads, and vectors of each, whose sums fit the registers */

typedef struct {  /* of a step */
    const int64_t *places;    /* of each token: where its key and value are written */
    const int32_t *rows;      /* of each token */
    const int32_t *contexts;  /* of each token: how many tokens it sees, itself included */
    const int32_t *tables;    /* of each row: its blocks */
    int64_t tokens, width, block;  /* width: blocks of a row of the tables; block: tokens, whole sixteens */
    int64_t total;            /* of the contexts */
} Step;

typedef struct {  /* of a layer */
    int64_t heads, kv_heads, key_dim, value_dim, window;  /* window: 0 if there is none */
    float scale;
} Layer;

#ifdef __AVX512BF16__ /* numbers are multiplied as they are stored */
enum { PART = 2 * LANES };
typedef __m512bh Part;

ALWAYS Part part_of(const uint16_t *x, int64_t count) {
    const __mmask32 there = count < PART ? (1u << count) - 1 : 0xffffffff;
    return (__m512bh)_mm512_maskz_loadu_epi16(there, x);
}

ALWAYS Vector plus_products(Vector sum, Part a, Part b) { return _mm512_dpbf16_ps(sum, a, b); }
#else
enum { PART = LANES };
typedef Vector Part;

ALWAYS Part part_of(const uint16_t *x, int64_t count) { return some_floats_of(x, count); }
ALWAYS Vector plus_products(Vector sum, Part a, Part b) { return plus_product(sum, a, b); }
#endif

/* Read the keys of LANES tokens: their parts, as many for each part of a query. `apart`: from one key to the next. */
ALWAYS void read_parts(const uint16_t *key, int64_t apart, int64_t dim, Part *parts) {
    for (int64_t i = 0; i < dim; i += PART, parts += LANES)
        UNROLL for (int n = 0; n < LANES; n++) parts[n] = part_of(key + n * apart + i, dim - i);
}

/* The products of a query with the keys of LANES tokens. `parts`: these keys, if they were read before; or null. */
ALWAYS Vector scores_of(const uint16_t *query, const uint16_t *key, int64_t apart, int64_t dim, const Part *parts) {
    Vector sum[LANES];
    UNROLL for (int n = 0; n < LANES; n++) sum[n] = same(0);
    for (int64_t i = 0; i < dim; i += PART) {
        const Part part = part_of(query + i, dim - i);
        UNROLL for (int n = 0; n < LANES; n++) {
            const Part other = parts ? parts[i / PART * LANES + n] : part_of(key + n * apart + i, dim - i);
            sum[n] = plus_products(sum[n], part, other);
        }
    }
    return sums_of(sum);
}

/* Scores become weights, relative to the largest score so far. Returns what earlier sums are multiplied by.

The tokens are those from `low` to `high`. */
ALWAYS float weigh(float *weight, int64_t low, int64_t high, float *most, float *total) {
    Vector largest = same(*most), sum = same(0);
    const int64_t first = low / LANES * LANES;
    for (int64_t t = first; t < high; t += LANES)
        largest = choose(between(low - t, high - t), larger(largest, load(weight + t)), largest);
    const float top = largest_of(largest);
    const float by = first_of(exponential(same(*most - top)));
    for (int64_t t = first; t < high; t += LANES) {
        const Vector power = exponential(load(weight + t) - same(top));
        const Vector each = choose(between(low - t, high - t), power, same(0));
        sum = sum + each;
        store(weight + t, each);
    }
    *total = *total * by + sum_of(sum);
    *most = top;
    return by;
}

/* Add the weighted values of some tokens to some sums, each of which is multiplied by its `by` before. */
ALWAYS void add_values(const int sums, const int wide, float *const *weight, const float *by,
                       const uint16_t *const *value, int64_t low, int64_t high, int64_t i, float *const *out) {
    Vector sum[MOST][WIDE];
    UNROLL for (int s = 0; s < sums; s++)
        UNROLL for (int n = 0; n < wide; n++) sum[s][n] = load(out[s] + i + n * LANES) * same(by[s]);
    for (int64_t t = low; t < high; t++)
        UNROLL for (int n = 0; n < wide; n++) {
            const Vector some = floats_of(value[t] + i + n * LANES);
            UNROLL for (int s = 0; s < sums; s++) sum[s][n] = plus_product(sum[s][n], some, same(weight[s][t]));
        }
    UNROLL for (int s = 0; s < sums; s++)
        UNROLL for (int n = 0; n < wide; n++) store(out[s] + i + n * LANES, sum[s][n]);
}

/* Some key heads of tokens that follow each other in a row, and the heads that share each. A tile's keys of all
of them are near each other. `apart`: of queries, from one token to the next. */
static void attend_heads(const Step *step, const Layer *layer, int64_t token, int64_t tokens, int64_t kv_heads,
                         const uint16_t *q, int64_t apart, const uint16_t *keys, const uint16_t *values,
                         const uint16_t *sinks, uint16_t *out) {
    const int64_t group = layer->heads / layer->kv_heads, dim = layer->key_dim, wide = layer->value_dim;
    const int64_t key_apart = layer->kv_heads * dim, value_apart = layer->kv_heads * wide, heads = kv_heads * group;
    const int32_t *ends = step->contexts + token, *table = step->tables + step->rows[token] * step->width;
    int64_t starts[TOGETHER] = {0};
    float sum[tokens][heads][wide], weight[tokens * group][TILE], by[tokens * group];
    float most[tokens][heads], total[tokens][heads], *weights[tokens * group], *outs[tokens * group];
    Part parts[(dim + PART - 1) / PART * LANES];
    memset(sum, 0, sizeof sum);
    for (int64_t n = 0; n < tokens; n++) {
        starts[n] = layer->window && ends[n] > layer->window ? ends[n] - layer->window : 0;
        for (int64_t h = 0; h < heads; h++) {
            const uint32_t sink = sinks ? (uint32_t)sinks[h] << 16 : 0xff800000; /* minus infinity */
            memcpy(&most[n][h], &sink, 4);
            total[n][h] = sinks != 0;
        }
    }
    for (int64_t tile = starts[0] / TILE * TILE; tile < ends[tokens - 1]; tile += TILE) {
        int64_t low[TOGETHER], high[TOGETHER], place[TILE / LANES];
        for (int64_t n = 0; n < tokens; n++) {
            low[n] = starts[n] > tile ? starts[n] - tile : 0;
            high[n] = tile + TILE < ends[n] ? TILE : ends[n] - tile;
        }
        const int64_t first = low[0] / LANES * LANES, last = high[tokens - 1];
        for (int64_t t = first; t < last; t += LANES) /* which are in one block */
            place[t / LANES] = table[(tile + t) / step->block] * step->block + (tile + t) % step->block;
        for (int64_t head = 0; head < kv_heads; head++) {
            const uint16_t *value[TILE];
            const int64_t own = head * group;
            for (int64_t n = 0; n < tokens; n++)
                for (int64_t g = 0; g < group; g++) {
                    weights[n * group + g] = weight[n * group + g], outs[n * group + g] = sum[n][own + g];
                    if (low[n] > first || high[n] < last) memset(weight[n * group + g], 0, sizeof *weight);
                }
            for (int64_t t = first; t < last; t += LANES) {
                const int64_t at = place[t / LANES];
                const uint16_t *key = keys + at * key_apart + head * dim;
                for (int64_t n = 0; n < LANES; n++) value[t + n] = values + (at + n) * value_apart + head * wide;
                if (tokens > 1) read_parts(key, key_apart, dim, parts);
                for (int64_t n = 0; n < tokens; n++)
                    for (int64_t g = 0; g < group && t < high[n] && t + LANES > low[n]; g++) {
                        const uint16_t *query = q + n * apart + (own + g) * dim;
                        const Vector scores = tokens > 1 ? scores_of(query, key, key_apart, dim, parts)
                                                         : scores_of(query, key, key_apart, dim, 0);
                        store(weight[n * group + g] + t, scores * same(layer->scale));
                    }
            }
            for (int64_t s = 0; s < tokens * group; s++) {
                const int64_t n = s / group, h = own + s % group;
                by[s] = low[n] < high[n] ? weigh(weight[s], low[n], high[n], &most[n][h], &total[n][h]) : 1;
            }
#define ADD(SUMS, VECTORS) add_values(SUMS, VECTORS, weights + s, by + s, value, low[s / group], \
                                      high[(s + SUMS - 1) / group], i, outs + s)
#define ADD_ALL(VECTORS) do { \
                int64_t s = 0; \
                for (; s + MOST <= tokens * group; s += MOST) ADD(MOST, VECTORS); \
                for (; s < tokens * group; s++) ADD(1, VECTORS); \
            } while (0)
            int64_t i = 0;
            for (; i + WIDE * LANES <= wide; i += WIDE * LANES) ADD_ALL(WIDE);
            for (; i < wide; i += LANES) ADD_ALL(1);
        }
    }
    for (int64_t n = 0; n < tokens; n++)
        for (int64_t h = 0; h < heads; h++)
            for (int64_t i = 0; i < wide; i += LANES)
                round_to(out + (n * layer->heads + h) * wide + i, load(sum[n][h] + i) / same(total[n][h]));
}

/* How many tokens of a row are computed together, from this one on. */
static int64_t together_from(const Step *step, int64_t token) {
    int64_t count = 1;
    while (count < TOGETHER && token + count < step->tokens && step->rows[token + count] == step->rows[token]) count++;
    return count;
}

/* Write the keys and values of all tokens, and attend for each. Returns whether it failed, for lack of memory.

`apart`: numbers from one token to the next, of queries, keys and values. `sinks`: of each head, or null. */
int attend(const Step *step, const Layer *layer, const uint16_t *q, const uint16_t *k, const uint16_t *v,
           int64_t q_apart, int64_t k_apart, int64_t v_apart, uint16_t *keys, uint16_t *values,
           const uint16_t *sinks, uint16_t *out, int threads) {
    const int64_t kv_heads = layer->kv_heads, group = layer->heads / kv_heads;
    const int64_t key = kv_heads * layer->key_dim, value = kv_heads * layer->value_dim;
    int64_t *firsts = malloc((step->tokens + 1) * sizeof *firsts), units = 0;
    if (!firsts) return 1;
    for (int64_t t = 0; t < step->tokens; t++) {
        memcpy(keys + step->places[t] * key, k + t * k_apart, 2 * key);
        memcpy(values + step->places[t] * value, v + t * v_apart, 2 * value);
    }
    for (int64_t t = 0; t < step->tokens; t += together_from(step, t)) firsts[units++] = t;
    firsts[units] = step->tokens;
    const int64_t work = step->total * layer->heads * (layer->key_dim + layer->value_dim);
    const int64_t most = units < threads ? 1 : kv_heads, parts = kv_heads / most;
#pragma omp parallel for num_threads(threads) schedule(dynamic) if (threads > 1 && work > ALONE)
    for (int64_t n = 0; n < units * parts; n++) {
        const int64_t token = firsts[n / parts], head = n % parts, first = head * group;
        attend_heads(step, layer, token, firsts[n / parts + 1] - token, most,
                     q + token * q_apart + first * layer->key_dim, q_apart, keys + head * layer->key_dim,
                     values + head * layer->value_dim, sinks ? sinks + first : sinks,
                     out + (token * layer->heads + first) * layer->value_dim);
    }
    free(firsts);
    return 0;
}
