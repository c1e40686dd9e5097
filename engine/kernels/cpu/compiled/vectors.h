/* Vectors of LANES numbers: bfloat16 in memory, float32 in registers. With AVX-512 there are 16, else 8.

Besides what these headers define, the operators + - * / take vectors.
*/
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#define ALWAYS static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

#ifdef __AVX512F__
#include "avx512.h"
#else
#include "avx2.h"
#endif

/* e^x, within 2 units of the last place, for x from -87 to 88; others count as the nearer end. NaN stays NaN. */
ALWAYS Vector exponential(Vector x) {
    x = smaller(same(88), larger(same(-87), x)); /* in this order, NaN is kept */
    const Vector whole = nearest(x * same(1.44269504f));
    /* ln 2 in two parts, of which the first has few bits */
    Vector rest = less_product(x, whole, same(0.693359375f));
    rest = less_product(rest, whole, same(-2.12194440e-4f));
    static const float taylor[] = {1.f / 720, 1.f / 120, 1.f / 24, 1.f / 6, 0.5f, 1, 1};
    Vector sum = same(1.f / 5040);
    UNROLL for (int n = 0; n < 7; n++) sum = plus_product(same(taylor[n]), sum, rest);
    return scaled(sum, whole);
}
