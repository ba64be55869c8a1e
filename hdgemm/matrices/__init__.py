"""Stored matrices and views: arrays, .npy, raw, HDF5, Zarr, object stores."""

from hdgemm.matrices import formats as formats  # registers them: any location may name each
