/*
 * Scaled vector addition, in place.
 */
#include "tile.h"

#include <stddef.h>

static inline void saxpy_tile(float alpha, const float *TILE_RESTRICT x,
                              float *TILE_RESTRICT y, size_t count)
{
    for (size_t i = 0; i < count; ++i) {
        y[i] = alpha * x[i] + y[i];
    }
}

/* y[i] = alpha * x[i] + y[i] for i < size; `x` and `y` do not overlap. */
TILE_EXPORT void saxpy(float alpha, const float *TILE_RESTRICT x,
                       float *TILE_RESTRICT y, size_t size)
{
    size_t start = 0;
    for (; size - start >= TILE; start += TILE) {
        saxpy_tile(alpha, x + start, y + start, TILE);
    }
    saxpy_tile(alpha, x + start, y + start, tile_extent(start, size));
}
