"""Stored matrices and views: arrays, .npy, raw, HDF5, Zarr, object stores."""

from hdgemm.matrices import formats as formats  # registers them: any location may name each
from hdgemm.matrices import read_only_formats as read_only_formats
