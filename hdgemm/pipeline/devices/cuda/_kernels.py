"""CUDA source of the kernels that move rows or columns, which NVRTC compiles at the first use."""

from __future__ import annotations

from typing import Final

#: Threads of a thread block, and the most thread blocks in the second dimension of a grid.
THREADS: Final = 256
_MAX_GRID_Y: Final = 65535

#: Rows (or columns) `lines` of a row-major matrix to dense workspace, or back.
SOURCE: Final = """
struct Pair { double first, second; };

template <typename T>
__device__ void move(T *matrix, T *workspace, const long long *lines, long long pitch,
                     long long width, long long height, long long columns, long long back)
{
    long long col = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (col >= width)
        return;
    for (long long row = blockIdx.y; row < height; row += gridDim.y) {
        T *inside = columns ? matrix + row * pitch + lines[col] : matrix + lines[row] * pitch + col;
        T *outside = workspace + row * width + col;
        if (back)
            *inside = *outside;
        else
            *outside = *inside;
    }
}

#define KERNEL(name, T)                                                                     \\
    extern "C" __global__ void name(T *matrix, T *workspace, const long long *lines,        \\
                                    long long pitch, long long width, long long height,     \\
                                    long long columns, long long back)                      \\
    {                                                                                       \\
        move(matrix, workspace, lines, pitch, width, height, columns, back);                \\
    }

KERNEL(move_4, int)
KERNEL(move_8, long long)
KERNEL(move_16, Pair)
"""
#: Kernel of each size of an element, in bytes.
NAMES: Final = {4: "move_4", 8: "move_8", 16: "move_16"}


def grid_of(width: int, height: int) -> tuple[int, int]:
    """Return the thread blocks that cover workspace of `height` rows of `width` elements."""
    return -(-width // THREADS), min(height, _MAX_GRID_Y)
