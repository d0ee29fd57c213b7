/*
 * Softmax along the rows of a matrix.
 */
#include "tile.h"

#include <math.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __FAST_MATH__
#error "-ffast-math removes the rounding step of the exponential"
#endif

/*
 * Arguments of the exponential are raised to this.  It rounds to the exponent
 * -127, which exp_clamped scales by 0: results this small flush to zero.
 */
#define LOWEST_ARGUMENT (-88.0f)

/*
 * exp(x) for LOWEST_ARGUMENT <= x <= 0, to about one part in 10^7.
 *
 * Written out because a call to expf cannot be vectorised without relaxing
 * floating-point semantics for the whole file.  There is no float-to-integer
 * conversion, so NaN passes through with defined behaviour.
 */
static inline float exp_clamped(float x)
{
    const float log2_e = 1.44269504f;
    /* ln 2 in two parts: the first has few bits, so its multiples are exact. */
    const float ln2_high = 0.693359375f;
    const float ln2_low = -2.12194440e-4f;
    /* Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits. */
    const float rounder = 12582912.0f;

    const union { float value; uint32_t bits; } shifted = {
        .value = x * log2_e + rounder
    };
    const float exponent = shifted.value - rounder;
    const float r = (x - exponent * ln2_high) - exponent * ln2_low;

    /* Minimax polynomial for |r| <= ln(2) / 2, from the Cephes library. */
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;

    /* 2^exponent, built in the exponent field; upper bits shift out. */
    const union { uint32_t bits; float value; } scale = {
        .bits = (shifted.bits + 127u) << 23
    };
    return p * scale.value;
}

static inline void max_tile(const float *TILE_RESTRICT x,
                            float *TILE_RESTRICT lanes, size_t count)
{
    for (size_t lane = 0; lane < count; ++lane) {
        lanes[lane] = x[lane] > lanes[lane] ? x[lane] : lanes[lane];
    }
}

static inline void exp_tile(const float *TILE_RESTRICT x, float shift,
                            float *TILE_RESTRICT out,
                            float *TILE_RESTRICT lanes, size_t count)
{
    /* A loop of its own: inside the next one, compilers turn it into a branch. */
    for (size_t lane = 0; lane < count; ++lane) {
        const float argument = x[lane] - shift;
        out[lane] = argument < LOWEST_ARGUMENT ? LOWEST_ARGUMENT : argument;
    }
    for (size_t lane = 0; lane < count; ++lane) {
        const float e = exp_clamped(out[lane]);
        out[lane] = e;
        lanes[lane] += e;
    }
}

/* NaN elements are skipped: they reach the result through the exponentials. */
static float row_max(const float *TILE_RESTRICT x, size_t cols)
{
    float lanes[TILE];
    for (size_t lane = 0; lane < TILE; ++lane) {
        lanes[lane] = -INFINITY;
    }
    size_t col = 0;
    for (; cols - col >= TILE; col += TILE) {
        max_tile(x + col, lanes, TILE);
    }
    max_tile(x + col, lanes, tile_extent(col, cols));

    float max = lanes[0];
    for (size_t lane = 1; lane < TILE; ++lane) {
        max = lanes[lane] > max ? lanes[lane] : max;
    }
    return max;
}

/* Writes exp(x - shift) to `out` and returns the sum of what it wrote. */
static float row_exp(const float *TILE_RESTRICT x, float shift,
                     float *TILE_RESTRICT out, size_t cols)
{
    float lanes[TILE] = {0.0f};
    size_t col = 0;
    for (; cols - col >= TILE; col += TILE) {
        exp_tile(x + col, shift, out + col, lanes, TILE);
    }
    exp_tile(x + col, shift, out + col, lanes, tile_extent(col, cols));
    return tile_sum(lanes);
}

/*
 * out[r, c] = exp(x[r, c]) / sum over c' of exp(x[r, c']).
 *
 * `x` and `out` are row-major, rows by cols, and do not overlap.  The largest
 * element of a row is subtracted first, so large inputs do not overflow.
 */
TILE_EXPORT void softmax(const float *TILE_RESTRICT x,
                         float *TILE_RESTRICT out, size_t rows, size_t cols)
{
    for (size_t row = 0; row < rows; ++row) {
        const float *TILE_RESTRICT source = x + row * cols;
        float *TILE_RESTRICT target = out + row * cols;

        const float shift = row_max(source, cols);
        const float scale = 1.0f / row_exp(source, shift, target, cols);
        for (size_t col = 0; col < cols; ++col) {
            target[col] *= scale;
        }
    }
}
