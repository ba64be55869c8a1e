"""Checksums of each C tile, computed along with the product (Huang and Abraham 1984).

For random signs x (over C's columns) and y (over its rows), the rows and the columns of

    C_t = alpha·Σ_s A_s·B_s + beta·C₀    (s: the steps of a work unit)

are summed twice: C_t·x against alpha·Σ A_s·(B_s·x) + beta·C₀·x, and y'·C_t against
alpha·Σ (y'·A_s)·B_s + beta·y'·C₀. Each costs one pass over a tile for each 2·nb (2·mb) flops per
element that multiplying it takes.

Data flow: `B_s·x` and `y'·A_s` are made once for each loaded tile, when it is first used (host)
or while it is uploaded (devices with memory of their own). mult1 adds the products with the other
tile: on the host by matrix-vector products, on devices as two thin gemms. Before the tile's first
store2 (store1, where there is one) C_t itself is summed and compared.

Invariant: no element of a unit reaches store2 before the unit has passed, or was computed again
and has passed. An error in a slot after its sums were made shows in one of the two directions: a
changed A tile in the columns, a changed B tile in the rows; an error of the device in both.

`bounds` says what a correct tile may deviate, and which errors are found for certain.
"""

from hdgemm.pipeline.abft.tally import CheckedTiles, Tally

__all__ = ["CheckedTiles", "Tally"]
