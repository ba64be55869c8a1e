"""Stored matrices and views: arrays, .npy, raw, HDF5, Zarr, object stores."""

from hdgemm.matrices import (
    _formats as _formats,  # registers them: any location may name each
    _read_only_formats as _read_only_formats,
)
