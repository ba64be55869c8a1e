"""Benchmarks that no other test imports still find what they import."""

import importlib
import pkgutil

import bench


def test_each_module_can_be_imported():
    for found in pkgutil.walk_packages(bench.__path__, "bench."):
        if not found.name.endswith("__main__"):
            importlib.import_module(found.name)
