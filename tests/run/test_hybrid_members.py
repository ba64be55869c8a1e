"""Plans of several devices that share a product: tiles to balance with, within each memory."""

import numpy as np
import pytest

from hdgemm.machine.rates import assumed
from hdgemm.matrices.arrays import ArrayMatrix
from hdgemm.matrices.base import Operand
from hdgemm.options import Options
from hdgemm.pipeline.devices.recording import RecordingDevice
from hdgemm.product.product import Product
from hdgemm.run import session as sessions
from hdgemm.run.members import plan_members
from hdgemm.run.session import Session

N = 4096


@pytest.fixture(scope="module")
def product():
    # Pages that are never touched take no memory.
    a, b, c = (Operand(ArrayMatrix(np.empty((N, N)))) for _ in range(3))
    return Product(a, b, c, None, 1.0, 0.0, *[np.dtype("float64")] * 2)


def seats(product, *memory, monkeypatch, tmp_path, **options):
    monkeypatch.setenv("HDGEMM_CACHE", str(tmp_path))
    limits = {f"x{i}": limit for i, limit in enumerate(memory)}
    monkeypatch.setattr(
        sessions, "open_device", lambda name, _limit, **_: RecordingDevice(limits[name], name=name)
    )
    # Rates measured on a busy machine would decide the tiles.
    monkeypatch.setattr(sessions, "machine_for", lambda _problem, device, *_, **__: assumed(device))
    chosen = Options(host_memory="8GB", **options)
    with Session(chosen) as session:
        return plan_members(
            lambda device: product.problem(device.spec), list(limits), chosen, session
        )


def a_depth(plan):
    return plan.layout.a_depth


def test_two_devices_get_tiles_to_balance_with(product, monkeypatch, tmp_path):
    for seat in seats(product, 1 << 30, 1 << 30, monkeypatch=monkeypatch, tmp_path=tmp_path):
        mb, nb, _ = seat.plan.tile
        assert mb <= N // 4
        assert nb <= N // 2


def test_a_bar_of_a_stays_where_memory_allows(product, monkeypatch, tmp_path):
    for seat in seats(product, 1 << 30, 1 << 30, monkeypatch=monkeypatch, tmp_path=tmp_path):
        plan = seat.plan
        assert (plan.a_slots.count - 1) * a_depth(plan) >= N


@pytest.mark.parametrize("limit", [1 << 20, 16 << 20, 64 << 20])
def test_slots_stay_within_each_memory(product, monkeypatch, tmp_path, limit):
    for seat in seats(product, limit, 1 << 30, monkeypatch=monkeypatch, tmp_path=tmp_path):
        assert seat.plan.device_bytes <= seat.device.spec.memory_bytes
        assert seat.plan.host_bytes <= seat.plan.host_limit


def test_a_single_device_is_planned_for_as_if_alone(product, monkeypatch, tmp_path):
    (seat,) = seats(product, 1 << 30, monkeypatch=monkeypatch, tmp_path=tmp_path)
    assert seat.plan.tile[0] > N // 4


def test_a_forced_tile_is_taken(product, monkeypatch, tmp_path):
    found = seats(
        product, 1 << 30, 1 << 30, monkeypatch=monkeypatch, tmp_path=tmp_path, tile=(96, 64, 128)
    )
    assert {seat.plan.tile for seat in found} == {(96, 64, 128)}
