"""Rates of probes alone, in pairs and together."""

import pytest

from hdgemm.errors import InputError
from hdgemm.profiling import _contention as contention_module
from hdgemm.profiling._contention import Contention
from hdgemm.profiling._probes import Probe


def probes(*names):
    return {name: Probe(name, lambda: 1) for name in names}


def test_probes_run_alone_in_pairs_and_together():
    contention = Contention(probes("load1", "mult1", "disk"), 0.001, 2)
    named = list(contention.run())
    # The two stages together are one of the pairs.
    assert len(named) == len(contention) == 2 * (3 + 3 + 1)
    assert len(contention.alone("disk").values) == 2
    assert len(contention.beside("mult1", "load1").values) == 2
    assert len(contention.beside("load1", "mult1").values) == 2
    assert set(contention.bandwidths()) == {"load1", "mult1"}
    assert set(contention.matrix()) == {"load1", "mult1", "disk"}
    assert set(contention.matrix()["disk"]) == {"load1", "mult1", "all"}


def test_rates_are_relative_to_the_rate_alone(monkeypatch):
    def rates(running, _seconds):
        return {probe.name: 90.0 / len(running) for probe in running}

    monkeypatch.setattr(contention_module, "measure_rates", rates)
    contention = Contention(probes("load1", "store1", "cores"), 1.0, 1)
    list(contention.run())
    matrix = contention.matrix()
    assert matrix["load1"]["store1"].median == pytest.approx(1 / 2)
    assert matrix["load1"]["all"].median == pytest.approx(1 / 3)
    assert "load1" not in matrix["load1"]
    assert contention.bandwidths()["store1"].kept == pytest.approx(1 / 2)


def test_an_interrupted_measurement_has_the_rates_until_then():
    contention = Contention(probes("load1", "store1"), 0.001, 1)
    next(runs := contention.run())
    next(runs)
    assert contention.matrix() == {"load1": {}}
    assert contention.bandwidths() == {}


def test_a_probe_that_fails_ends_the_measurement():
    def fail():
        raise InputError("no")

    failing = {"disk": Probe("disk", fail), **probes("load1")}
    with pytest.raises(InputError, match="no"):
        list(Contention(failing, 60.0, 1).run())
    with pytest.raises(InputError, match="no"):
        contention_module.measure_rates(list(failing.values()), 60.0)
