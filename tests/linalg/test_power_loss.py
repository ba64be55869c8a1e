"""Durable factorisations while power fails: the same call goes on to the same bits."""

import numpy as np
import pytest

import hdgemm
from hdgemm.linalg import lu_factor
from tests.durable.power_loss import PowerLoss
from tests.linalg.matrices import random_matrix

N = 24
SLABS = hdgemm.Options(tile=(1, 7, 3), host_memory="30MB")


@pytest.mark.parametrize("in_place", [False, True])
def test_power_may_fail_at_any_call(tmp_path, monkeypatch, in_place):
    a, out = tmp_path / "A.npy", tmp_path / ("A.npy" if in_place else "F.npy")
    where = {"overwrite_a": True} if in_place else {"out": out}

    def begin():
        for path in tmp_path.iterdir():
            path.unlink()
        np.save(a, np.asfortranarray(random_matrix(N, N, "float64")))

    def factor():
        lu_factor(a, options=SLABS, checkpoint=True, **where)

    def stored():
        return out.read_bytes(), out.with_suffix(".piv.npy").read_bytes()

    power = PowerLoss(tmp_path, monkeypatch)
    begin()
    power.on()
    factor()
    calls, expected = power.calls, stored()
    for call in range(4, calls, calls // 7):
        begin()
        power.on()
        power.fails_during(factor, call, seed=2)
        factor()
        assert stored() == expected, call
