/* A weight in panels of 32 outputs, and how its rows of activations are divided. */
#include "vectors.h"

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

/* Write sums, from the output `at` on; a panel may have more outputs than the weight. */
static __attribute__((noinline)) void write_outputs(Vector sum, const Weight *weight, int64_t at, uint16_t *out) {
    const int64_t count = weight->outputs - at;
    if (weight->bias) sum = sum + load_some(weight->bias + at, count);
    round_some_to(out + at, sum, count);
}
