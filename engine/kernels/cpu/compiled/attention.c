/* Attention of rows of one token over their cached keys and values, in bfloat16 with sums in float32.

Each row is computed alone, and its context is read in tiles of positions: neither the other rows, nor the places
of its blocks, nor the number of threads change a bit.
*/
#include "vectors.h"

enum { TILE = 128, ALONE = 1 << 17 };      /* ALONE: multiplications that are not worth a second thread */
enum { MOST = LANES / 4, WIDE = 4 };       /* heads, and vectors of each, whose sums fit the registers */

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

/* The products of a query with the keys of LANES tokens. `apart`: from one key to the next. */
ALWAYS Vector scores_of(const uint16_t *query, const uint16_t *key, int64_t apart, int64_t dim) {
    Vector sum[LANES];
    UNROLL for (int n = 0; n < LANES; n++) sum[n] = same(0);
    for (int64_t i = 0; i < dim; i += PART) {
        const Part part = part_of(query + i, dim - i);
        UNROLL for (int n = 0; n < LANES; n++) sum[n] = plus_products(sum[n], part, part_of(key + n * apart + i, dim - i));
    }
    return sums_of(sum);
}

/* Scores become weights, relative to the largest score so far. Returns what earlier sums are multiplied by.

The tokens are those from `low` to `high`, of which `weight` begins with the LANES tokens that hold the first. */
ALWAYS float weigh(float *weight, int64_t low, int64_t high, float *most, float *total) {
    Vector largest = same(*most), sum = same(0);
    for (int64_t t = 0; t < high; t += LANES)
        largest = choose(between(low - t, high - t), larger(largest, load(weight + t)), largest);
    const float top = largest_of(largest);
    const float by = first_of(exponential(same(*most - top)));
    for (int64_t t = 0; t < high; t += LANES) {
        const Vector power = exponential(load(weight + t) - same(top));
        const Vector each = choose(between(low - t, high - t), power, same(0));
        sum = sum + each;
        store(weight + t, each);
    }
    *total = *total * by + sum_of(sum);
    *most = top;
    return by;
}

/* Add the weighted values of some tokens to the sums of some heads, which are multiplied by `by` before.

`apart`: from one head's weights to the next; `next`: from one head's sums to the next. */
ALWAYS void add_values(const int heads, const int wide, const float *weight, int64_t apart, const float *by,
                       const uint16_t *const *value, int64_t low, int64_t high, int64_t i, float *out, int64_t next) {
    Vector sum[MOST][WIDE];
    UNROLL for (int h = 0; h < heads; h++)
        UNROLL for (int n = 0; n < wide; n++) sum[h][n] = load(out + h * next + i + n * LANES) * same(by[h]);
    for (int64_t t = low; t < high; t++)
        UNROLL for (int n = 0; n < wide; n++) {
            const Vector some = floats_of(value[t] + i + n * LANES);
            UNROLL for (int h = 0; h < heads; h++)
                sum[h][n] = plus_product(sum[h][n], some, same(weight[h * apart + t]));
        }
    UNROLL for (int h = 0; h < heads; h++)
        UNROLL for (int n = 0; n < wide; n++) store(out + h * next + i + n * LANES, sum[h][n]);
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
        const int64_t first = tile > start ? tile : start / LANES * LANES;  /* each vector is in one block */
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
                    store(weight[g] + t, scores_of(query, key, key_apart, dim) * same(layer->scale));
                }
            }
            const int64_t own = head * group;
            for (int64_t g = 0; g < group; g++)
                by[g] = weigh(weight[g], low, high, &most[own + g], &total[own + g]);
#define ADD(HEADS, VECTORS) add_values(HEADS, VECTORS, weight[g], TILE, by + g, value, low, high, i, sum[own + g], wide)
#define EACH_HEAD(VECTORS) do { \
                int64_t g = 0; \
                for (; g + MOST <= group; g += MOST) ADD(MOST, VECTORS); \
                for (; g < group; g++) ADD(1, VECTORS); \
            } while (0)
            int64_t i = 0;
            for (; i + WIDE * LANES <= wide; i += WIDE * LANES) EACH_HEAD(WIDE);
            for (; i < wide; i += LANES) EACH_HEAD(1);
        }
    }
    for (int64_t h = 0; h < heads; h++)
        for (int64_t i = 0; i < wide; i += LANES) {
            round_to(out + h * wide + i, load(sum[h] + i) / same(total[h]));
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
