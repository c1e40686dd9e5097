/* A weight in panels of 32 outputs, and how its rows of activations are divided. */
#include <stdint.h>

#define ALWAYS static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

typedef struct {
    const uint8_t *panels;
    const float *scale;          /* of each output, for 8 bits */
    const float *bias;           /* or null */
    int64_t outputs, inputs, group;
} Weight;

/* The first row of a block: blocks of at most `most` rows are of about the same size. */
ALWAYS int64_t start_of(int64_t block, int64_t rows, int64_t most) {
    int64_t blocks = (rows + most - 1) / most;
    return block * rows / blocks;
}
