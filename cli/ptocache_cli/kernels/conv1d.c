/*
 * One-dimensional convolution over several channels, tiled along time.
 */
#include "tile.h"

#include <stddef.h>

static inline void accumulate_tile(float weight, const float *TILE_RESTRICT x,
                                   float *TILE_RESTRICT sums, size_t count)
{
    for (size_t t = 0; t < count; ++t) {
        sums[t] += weight * x[t];
    }
}

/* Output samples x .. x + count of one output channel. */
static inline void convolve_tile(const float *TILE_RESTRICT x,
                                 const float *TILE_RESTRICT weights, float bias,
                                 float *TILE_RESTRICT out, size_t count,
                                 size_t channels, size_t length, size_t taps)
{
    /* Local, so that the compiler may keep the sums in registers over taps. */
    float sums[TILE];
    for (size_t t = 0; t < count; ++t) {
        sums[t] = bias;
    }
    for (size_t channel = 0; channel < channels; ++channel) {
        for (size_t tap = 0; tap < taps; ++tap) {
            accumulate_tile(weights[channel * taps + tap],
                            x + channel * length + tap, sums, count);
        }
    }
    for (size_t t = 0; t < count; ++t) {
        out[t] = sums[t];
    }
}

/*
 * out[o, t] = bias[o] + sum over i and j of weights[o, i, j] * x[i, t + j]
 *
 * Shapes, all row-major and dense: `x` is channels_in by length, `weights` is
 * channels_out by channels_in by taps, `bias` has channels_out elements, `out`
 * is channels_out by (length - taps + 1) and overlaps no input.  The filter is
 * not flipped, as is usual for neural networks, and the ends are not padded:
 * with no taps, or more taps than samples, nothing is written.
 */
TILE_EXPORT void conv1d(const float *TILE_RESTRICT x,
                        const float *TILE_RESTRICT weights,
                        const float *TILE_RESTRICT bias,
                        float *TILE_RESTRICT out,
                        size_t channels_in, size_t channels_out,
                        size_t length, size_t taps)
{
    if (taps == 0 || taps > length) {
        return;
    }
    const size_t samples = length - taps + 1;
    for (size_t channel = 0; channel < channels_out; ++channel) {
        const float *filter = weights + channel * channels_in * taps;
        float *TILE_RESTRICT target = out + channel * samples;

        size_t start = 0;
        for (; samples - start >= TILE; start += TILE) {
            convolve_tile(x + start, filter, bias[channel], target + start, TILE,
                          channels_in, length, taps);
        }
        convolve_tile(x + start, filter, bias[channel], target + start,
                      tile_extent(start, samples), channels_in, length, taps);
    }
}
