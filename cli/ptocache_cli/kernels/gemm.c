/*
 * Matrix product, blocked in all three dimensions.
 */
#include "tile.h"

#include <stddef.h>

/*
 * Adds the product of a rows-by-depth block of `a` and a depth-by-cols block
 * of `b` to `sums`.  The innermost loop runs along rows of `b` and of `sums`,
 * so every access in it is contiguous.
 */
static inline void multiply_block(const float *TILE_RESTRICT a, size_t a_stride,
                                  const float *TILE_RESTRICT b, size_t b_stride,
                                  float (*TILE_RESTRICT sums)[TILE],
                                  size_t rows, size_t cols, size_t depth)
{
    for (size_t i = 0; i < rows; ++i) {
        for (size_t p = 0; p < depth; ++p) {
            const float scale = a[i * a_stride + p];
            for (size_t j = 0; j < cols; ++j) {
                sums[i][j] += scale * b[p * b_stride + j];
            }
        }
    }
}

/*
 * c = a b, where `a` is m by k, `b` is k by n and `c` is m by n, all row-major
 * and dense; `c` overlaps neither input.
 */
TILE_EXPORT void gemm(const float *TILE_RESTRICT a, const float *TILE_RESTRICT b,
                      float *TILE_RESTRICT c, size_t m, size_t n, size_t k)
{
    for (size_t row = 0; row < m; row += TILE) {
        const size_t rows = tile_extent(row, m);
        for (size_t col = 0; col < n; col += TILE) {
            const size_t cols = tile_extent(col, n);

            float sums[TILE][TILE] = {{0.0f}};
            for (size_t step = 0; step < k; step += TILE) {
                const size_t depth = tile_extent(step, k);
                const float *a_block = a + row * k + step;
                const float *b_block = b + step * n + col;
                /* Only the width decides how well the inner loop vectorises. */
                if (cols == TILE) {
                    multiply_block(a_block, k, b_block, n, sums, rows, TILE, depth);
                } else {
                    multiply_block(a_block, k, b_block, n, sums, rows, cols, depth);
                }
            }

            for (size_t i = 0; i < rows; ++i) {
                for (size_t j = 0; j < cols; ++j) {
                    c[(row + i) * n + col + j] = sums[i][j];
                }
            }
        }
    }
}
