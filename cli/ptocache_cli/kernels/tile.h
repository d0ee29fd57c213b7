/*
 * Definitions shared by the tiled kernels.
 *
 * A kernel is compiled once per tile size, given as -DTILE=n.  Work on a whole
 * tile is written as a loop of exactly TILE iterations, so the compiler knows
 * the trip count and needs neither a run-time check nor a scalar epilogue;
 * what is left over goes through the same code with a variable count.
 */
#ifndef PTOCACHE_KERNELS_TILE_H
#define PTOCACHE_KERNELS_TILE_H

#include <stddef.h>

#ifndef TILE
#error "define the tile size, for example -DTILE=32"
#endif

#if TILE < 1
#error "TILE must be a positive integer"
#endif

/* Exported even when the build hides symbols by default. */
#if defined(_WIN32)
#define TILE_EXPORT __declspec(dllexport)
#elif defined(__GNUC__)
#define TILE_EXPORT __attribute__((visibility("default")))
#else
#define TILE_EXPORT
#endif

/* The extension also works in C++, which lacks the keyword. */
#if defined(__GNUC__) || defined(_MSC_VER)
#define TILE_RESTRICT __restrict
#else
#define TILE_RESTRICT restrict
#endif

/* Number of elements in the tile that starts at `start`, where start <= size. */
static inline size_t tile_extent(size_t start, size_t size)
{
    const size_t left = size - start;
    return left < TILE ? left : TILE;
}

/*
 * Sum of TILE partial sums.
 *
 * Reductions keep one partial sum per lane because a single running sum fixes
 * the order of the additions, which forbids vectorising them.
 */
static inline float tile_sum(const float lanes[TILE])
{
    float sum = 0.0f;
    for (size_t lane = 0; lane < TILE; ++lane) {
        sum += lanes[lane];
    }
    return sum;
}

#endif
