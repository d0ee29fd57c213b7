/*
 * Element-wise sum of two vectors.
 *
 * Self-contained on purpose: the one kernel that does not include tile.h, so
 * an edit of that header must leave its cached objects valid.
 */
#include <stddef.h>

#ifndef TILE
#error "define the tile size, for example -DTILE=256"
#endif

#if TILE < 1
#error "TILE must be a positive integer"
#endif

static inline void add_tile(const float *restrict a, const float *restrict b,
                            float *restrict out, size_t count)
{
    for (size_t i = 0; i < count; ++i) {
        out[i] = a[i] + b[i];
    }
}

/* out[i] = a[i] + b[i] for i < size; `out` overlaps neither input. */
void vector_add(const float *restrict a, const float *restrict b,
                float *restrict out, size_t size)
{
    size_t start = 0;
    for (; size - start >= TILE; start += TILE) {
        add_tile(a + start, b + start, out + start, TILE);
    }
    add_tile(a + start, b + start, out + start, size - start);
}
