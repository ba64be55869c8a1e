"""Samples of a matrix: one read for a small one, and the same content as reads of each sample."""

import numpy as np
import pytest

import hdgemm
from hdgemm.durable import fingerprint
from hdgemm.matrices.filematrix import FileMatrix


@pytest.mark.parametrize("shape", [(40, 30), (1, 1), (3, 700), (0, 4)])
def test_a_small_matrix_is_read_once_for_all_samples(tmp_path, monkeypatch, shape):
    np.save(tmp_path / "A.npy", np.random.default_rng(0).standard_normal(shape))
    reads, read = [], FileMatrix.read

    def counted(self, row, col, out):
        reads.append(out.shape)
        read(self, row, col, out)

    monkeypatch.setattr(FileMatrix, "read", counted)
    with hdgemm.open(tmp_path / "A.npy") as a:
        found = fingerprint.sampled(a.operand)
        assert reads == [shape] * (0 not in shape)
        monkeypatch.setattr(fingerprint, "_WHOLE", 0)
        reads.clear()
        assert fingerprint.sampled(a.operand) == found
        assert len(reads) == 66 * (0 not in shape)
