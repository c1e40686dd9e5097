/* Products of rows of bfloat16 with a weight of BITS bits: 4, 8 or 16.

Each row is summed alone and always in the same order, so its bits do not depend on the other rows. A weight
is stored in panels of 32 outputs, so that a panel is read from one end to the other (product.py packs them):

16 bits: two inputs of each output at a time, for dpbf16.
4 and 8 bits: eight or four inputs of each output at a time, for dpbusd, which multiplies bytes. Activations
  become integers of 16 bits, relative to the largest of their group, in two digits of 8 bits. Sums of a group
  are exact. Weights are unsigned: the sum of the activations is subtracted as often as zero is away from 0.
*/
#include "panels.h"
#include <stdlib.h>

enum { PANEL = 2 * LANES, TILE = 128 };  /* TILE: rows that pass a panel while it is cached */
/* Panels read at once for one row: memory is faster at several places than at one, if registers suffice. */
enum { WIDE = BITS == 16 ? 4 : 1 };

ALWAYS __m512i everywhere(const void *four_bytes) {
    int32_t bytes;
    memcpy(&bytes, four_bytes, 4);
    return _mm512_set1_epi32(bytes);
}

#if BITS == 16

enum { MOST = 12 };  /* rows at a time: their sums fit the registers */

/* The outputs of `wide` panels for some rows; there are at most MOST sums of each half. */
ALWAYS void panels_of(const int rows, const int wide, const Weight *weight, int64_t panel, const uint16_t *x,
                      uint16_t *out) {
    const int64_t inputs = weight->inputs, next = inputs * PANEL * 2;
    const uint8_t *at = weight->panels + panel * next;
    __m512 sum[MOST][2];
    UNROLL for (int n = 0; n < rows * wide; n++) sum[n][0] = sum[n][1] = _mm512_setzero_ps();
    for (int64_t i = 0; i < inputs; i += 2, at += 4 * PANEL)
        UNROLL for (int w = 0; w < wide; w++) {
            __m512bh a = (__m512bh)_mm512_loadu_si512(at + w * next);
            __m512bh b = (__m512bh)_mm512_loadu_si512(at + w * next + 64);
            UNROLL for (int r = 0; r < rows; r++) {
                __m512bh two = (__m512bh)everywhere(x + r * inputs + i);
                __m512 *of = sum[w * rows + r];
                of[0] = _mm512_dpbf16_ps(of[0], a, two);
                of[1] = _mm512_dpbf16_ps(of[1], b, two);
            }
        }
    UNROLL for (int w = 0; w < wide; w++)
        UNROLL for (int r = 0; r < rows; r++)
            UNROLL for (int half = 0; half < 2; half++)
                write_outputs(sum[w * rows + r][half], weight, (panel + w) * PANEL + half * LANES, out + r * weight->outputs);
}

#else

enum { MOST = 6, ZERO = 1 << (BITS - 1), HEAD = BITS == 4 ? 4 * PANEL : 0 };  /* HEAD: bytes of scales and offsets */

typedef struct {
    float unit;   /* what 1 stands for; NaN if a number was not finite */
    int32_t sum;  /* of the integers */
} Group;

/* The digits of a row, and its groups. `apart`: bytes from four inputs to the next four. */
static void digits_of(const uint16_t *x, const Weight *weight, int8_t *digits, int64_t apart, Group *found) {
    const __m512 infinite = _mm512_set1_ps(__builtin_inff());
    for (int64_t g = 0; g < weight->inputs; g += weight->group, found++) {
        __m512 most = _mm512_setzero_ps();
        __mmask16 broken = 0;
        for (int64_t i = g; i < g + weight->group; i += LANES) {
            __m512 size = _mm512_abs_ps(floats_of(x + i));
            broken |= _mm512_cmp_ps_mask(size, infinite, _CMP_NLT_UQ);
            most = _mm512_max_ps(most, size);
        }
        const float top = 127 * 256, largest = _mm512_reduce_max_ps(most);
        const __m512 by = _mm512_set1_ps(largest > 1e-30f ? top / largest : 0);
        __m512i sum = _mm512_setzero_si512();
        for (int64_t i = g; i < g + weight->group; i += LANES, digits += 4 * apart) {
            __m512i whole = _mm512_cvtps_epi32(_mm512_mul_ps(floats_of(x + i), by));
            __m512i first = _mm512_srai_epi32(_mm512_add_epi32(whole, _mm512_set1_epi32(128)), 8);
            __m512i second = _mm512_sub_epi32(whole, _mm512_slli_epi32(first, 8));
            __m128i a = _mm512_cvtepi32_epi8(first), b = _mm512_cvtepi32_epi8(second);
            __m128i low = _mm_unpacklo_epi32(a, b), high = _mm_unpackhi_epi32(a, b);
            _mm_storel_epi64((__m128i *)digits, low);
            _mm_storel_epi64((__m128i *)(digits + apart), _mm_unpackhi_epi64(low, low));
            _mm_storel_epi64((__m128i *)(digits + 2 * apart), high);
            _mm_storel_epi64((__m128i *)(digits + 3 * apart), _mm_unpackhi_epi64(high, high));
            sum = _mm512_add_epi32(sum, whole);
        }
        found->unit = broken ? __builtin_nanf("") : largest / top;
        found->sum = broken ? 0 : _mm512_reduce_add_epi32(sum);
    }
}

/* Add the products of four inputs. Both digits of each row are adjacent. */
ALWAYS void add_four(const int rows, __m512i sum[MOST][2][2], __m512i a, __m512i b, const int8_t *digits) {
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int digit = 0; digit < 2; digit++) {
            __m512i four = everywhere(digits + 8 * r + 4 * digit);
            sum[r][digit][0] = _mm512_dpbusd_epi32(sum[r][digit][0], a, four);
            sum[r][digit][1] = _mm512_dpbusd_epi32(sum[r][digit][1], b, four);
        }
}

ALWAYS void panel_of(const int rows, const Weight *weight, int64_t panel, const int8_t *digits, const Group *found,
                     uint16_t *out) {
    const int64_t group = weight->group, groups = weight->inputs / group, apart = 8 * rows;
    const uint8_t *at = weight->panels + panel * groups * (HEAD + group * PANEL * BITS / 8);
    const __m512i low = _mm512_set1_epi8(15);
    __m512 total[MOST][2];
    UNROLL for (int r = 0; r < rows; r++) total[r][0] = total[r][1] = _mm512_setzero_ps();
    for (int64_t g = 0; g < groups; g++) {
        const uint16_t *head = (const uint16_t *)at;
        __m512i sum[MOST][2][2];
        UNROLL for (int r = 0; r < rows; r++) {
            sum[r][0][0] = sum[r][0][1] = _mm512_setzero_si512();
            sum[r][1][0] = sum[r][1][1] = _mm512_set1_epi32(-ZERO * found[r * groups + g].sum);
        }
        at += HEAD;
        for (int64_t i = 0; i < group; i += 32 / BITS, at += 128) {
            __m512i a = _mm512_loadu_si512(at), b = _mm512_loadu_si512(at + 64);
            if (BITS == 4) {
                add_four(rows, sum, _mm512_and_si512(a, low), _mm512_and_si512(b, low), digits);
                digits += apart;
                a = _mm512_and_si512(_mm512_srli_epi16(a, 4), low);
                b = _mm512_and_si512(_mm512_srli_epi16(b, 4), low);
            }
            add_four(rows, sum, a, b, digits);
            digits += apart;
        }
        UNROLL for (int half = 0; half < 2; half++)
            UNROLL for (int r = 0; r < rows; r++) {
                Group of = found[r * groups + g];
                __m512 value = _mm512_cvtepi32_ps(
                    _mm512_add_epi32(_mm512_slli_epi32(sum[r][0][half], 8), sum[r][1][half]));
                if (BITS == 4) {
                    __m512 offset = _mm512_mul_ps(floats_of(head + PANEL + half * LANES), _mm512_set1_ps(of.sum));
                    value = _mm512_fmadd_ps(value, floats_of(head + half * LANES), offset);
                }
                total[r][half] = _mm512_fmadd_ps(value, _mm512_set1_ps(of.unit), total[r][half]);
            }
    }
    UNROLL for (int r = 0; r < rows; r++)
        for (int half = 0; half < 2; half++) {
            int64_t first = panel * PANEL + half * LANES;
            __m512 value = total[r][half];
            if (BITS == 8) value = _mm512_mul_ps(value, _mm512_loadu_ps(weight->scale + first));
            write_outputs(value, weight, first, out + r * weight->outputs);
        }
}

#endif

static int tile(const Weight *weight, const uint16_t *x, int64_t rows, uint16_t *out, int threads) {
    const int64_t inputs = weight->inputs, panels = (weight->outputs + PANEL - 1) / PANEL;
    const int64_t blocks = (rows + MOST - 1) / MOST;
#if BITS != 16
    const int64_t groups = inputs / weight->group;
    int8_t *digits = malloc(rows * (2 * inputs + groups * sizeof(Group)));
    if (!digits) return 1;
    Group *found = (Group *)(digits + 2 * rows * inputs);
    for (int64_t b = 0; b < blocks; b++) {
        int64_t first = start_of(b, rows, MOST), end = start_of(b + 1, rows, MOST);
        for (int64_t r = first; r < end; r++)
            digits_of(x + r * inputs, weight, digits + 2 * first * inputs + 8 * (r - first), 8 * (end - first),
                      found + r * groups);
    }
#endif
#if BITS == 16
#define PANELS(ROWS, COUNT, P, FIRST) \
    panels_of(ROWS, COUNT, weight, P, x + (FIRST) * inputs, out + (FIRST) * weight->outputs)
#else
#define PANELS(ROWS, COUNT, P, FIRST) \
    panel_of(ROWS, weight, P, digits + 2 * (FIRST) * inputs, found + (FIRST) * groups, \
             out + (FIRST) * weight->outputs)
#endif
#define ROWS(N) case N: PANELS(N, 1, p, first); break;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t some = 0; some < panels; some += WIDE) {
        if (rows == 1 && some + WIDE <= panels) {
            PANELS(1, WIDE, some, 0);
            continue;
        }
        for (int64_t p = some; p < panels && p < some + WIDE; p++)
            for (int64_t b = 0; b < blocks; b++) {
                const int64_t first = start_of(b, rows, MOST);
                switch (start_of(b + 1, rows, MOST) - first) {
                    ROWS(1) ROWS(2) ROWS(3) ROWS(4) ROWS(5) ROWS(6)
#if BITS == 16
                    ROWS(7) ROWS(8) ROWS(9) ROWS(10) ROWS(11) ROWS(12)
#endif
                }
            }
    }
#if BITS != 16
    free(digits);
#endif
    return 0;
}

/* out = x @ weight.T + bias. Returns whether it failed, for lack of memory. */
int product(const Weight *weight, const uint16_t *x, int64_t rows, uint16_t *out, int threads) {
    for (int64_t at = 0; at < rows; at += TILE) {
        int64_t some = rows - at < TILE ? rows - at : TILE;
        if (tile(weight, x + at * weight->inputs, some, out + at * weight->outputs, threads)) return 1;
    }
    return 0;
}
