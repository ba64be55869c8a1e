"""Stored matrices and views: arrays, .npy, raw, HDF5, Zarr, object stores."""
