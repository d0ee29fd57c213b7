/*
 * Layer normalisation along the rows of a matrix.
 */
#include "tile.h"

#include <stddef.h>
#include <stdint.h>

/*
 * 1 / sqrt(x) for normal x > 0.
 *
 * sqrtf would leave a reference to the mathematics library (compilers call it
 * for negative arguments, to set errno), and then the object loads only where
 * that library happens to be present.  Once per row, this costs nothing.
 */
static float reciprocal_sqrt(float x)
{
    union { float value; uint32_t bits; } estimate = { .value = x };
    /* Halving and negating the exponent is right to within four per cent... */
    estimate.bits = 0x5f3759dfu - (estimate.bits >> 1);

    /* ...and every Newton step squares the error: three reach float accuracy. */
    float y = estimate.value;
    for (int step = 0; step < 3; ++step) {
        y *= 1.5f - 0.5f * x * y * y;
    }
    return y;
}

static inline void sum_tile(const float *TILE_RESTRICT x,
                            float *TILE_RESTRICT lanes, size_t count)
{
    for (size_t lane = 0; lane < count; ++lane) {
        lanes[lane] += x[lane];
    }
}

static inline void square_tile(const float *TILE_RESTRICT x, float mean,
                               float *TILE_RESTRICT lanes, size_t count)
{
    for (size_t lane = 0; lane < count; ++lane) {
        const float centred = x[lane] - mean;
        lanes[lane] += centred * centred;
    }
}

static float row_mean(const float *TILE_RESTRICT x, size_t cols)
{
    float lanes[TILE] = {0.0f};
    size_t col = 0;
    for (; cols - col >= TILE; col += TILE) {
        sum_tile(x + col, lanes, TILE);
    }
    sum_tile(x + col, lanes, tile_extent(col, cols));
    return tile_sum(lanes) / (float)cols;
}

/* A second pass: mean of squares minus square of mean cancels badly. */
static float row_variance(const float *TILE_RESTRICT x, float mean, size_t cols)
{
    float lanes[TILE] = {0.0f};
    size_t col = 0;
    for (; cols - col >= TILE; col += TILE) {
        square_tile(x + col, mean, lanes, TILE);
    }
    square_tile(x + col, mean, lanes, tile_extent(col, cols));
    return tile_sum(lanes) / (float)cols;
}

/*
 * out[r, c] = (x[r, c] - mean[r]) / sqrt(variance[r] + epsilon) * gamma[c] + beta[c]
 *
 * `x` and `out` are row-major, rows by cols, `gamma` and `beta` have cols
 * elements, and `out` overlaps no input.  The variance is the biased one;
 * epsilon > 0 keeps constant rows finite.
 */
TILE_EXPORT void layer_norm(const float *TILE_RESTRICT x,
                            const float *TILE_RESTRICT gamma,
                            const float *TILE_RESTRICT beta,
                            float *TILE_RESTRICT out,
                            size_t rows, size_t cols, float epsilon)
{
    for (size_t row = 0; row < rows; ++row) {
        const float *TILE_RESTRICT source = x + row * cols;
        float *TILE_RESTRICT target = out + row * cols;

        const float mean = row_mean(source, cols);
        const float variance = row_variance(source, mean, cols);
        const float scale = reciprocal_sqrt(variance + epsilon);
        for (size_t col = 0; col < cols; ++col) {
            target[col] = (source[col] - mean) * scale * gamma[col] + beta[col];
        }
    }
}
