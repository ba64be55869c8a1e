"""ABFT checksums of each C tile, computed along with the product (Huang and Abraham 1984).

For random signs x (over C's columns) and y (over its rows), the rows and the columns of

    C_t = alpha·Σ_s A_s·B_s + beta·C₀    (s: the steps of a work unit)

are summed twice: C_t·x against alpha·Σ A_s·(B_s·x) + beta·C₀·x, and y'·C_t against
alpha·Σ (y'·A_s)·B_s + beta·y'·C₀. Each costs one pass over a tile, where multiplying costs 2·nb
(2·mb) flops per element.

Data flow: `B_s·x` and `y'·A_s` are computed once for each loaded tile, at its first use (`host`)
or its upload (`device`). mult1 adds their products with the other tile: by matrix-vector products
on the host, by two thin gemms on devices. Before the tile's first store2 (store1, where there is
one) C_t itself is summed and compared (`inspection`).

Invariant: no element of a unit reaches store2 before the unit has passed, as computed first or
again. An error in a slot after its checksum was made shows in one of the two directions: a changed
A tile in the columns, a changed B tile in the rows. An error of the device shows in both.

`bounds` gives the deviation of a correct tile and the errors that are found with certainty.
"""

from hdgemm.pipeline.abft._counters import CheckedTiles, TileChecks

__all__ = ["CheckedTiles", "TileChecks"]
