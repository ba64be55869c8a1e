"""A folder in memory for the tests of durable runs."""

import os
import tempfile
from pathlib import Path

import pytest


@pytest.fixture
def memory_folder(tmp_path):
    """A folder in memory where there is one: thousands of fsyncs cost nothing there."""
    shm = Path("/dev/shm")
    if not os.access(shm, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=shm) as folder:
        yield Path(folder)
