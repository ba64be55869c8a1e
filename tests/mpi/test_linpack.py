"""One process: solutions against NumPy's, the residual's verdict, and what is refused."""

import json
import sys
import threading
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from scipy.linalg import solve_triangular
from threadpoolctl import threadpool_limits
from typer.testing import CliRunner

from hdgemm.cli.app import app
from hdgemm.errors import DeviceUnavailableError, DoesNotFitError, InputError
from hdgemm.mpi import _elimination as elimination, machine
from hdgemm.mpi._panel import factor_panel
from hdgemm.mpi._timeline import hidden_seconds
from hdgemm.mpi._window import host_update
from hdgemm.mpi.communicator import Communicator, world
from hdgemm.mpi.devices import Devices, open_devices
from hdgemm.mpi.linpack import Settings, linpack
from hdgemm.mpi.linpack._sequence import RandomMatrix
from hdgemm.mpi.linpack._system import System
from hdgemm.mpi.machine import needed_bytes
from hdgemm.mpi.variant import OVERLAPS
from hdgemm.options import Options
from hdgemm.pipeline.devices.registry import DeviceInfo, parts_of
from tests.mpi.test_settings import DAT


@pytest.fixture(scope="module", autouse=True)
def one_blas_thread():
    """Threads that each call a BLAS with several threads would wait for one another."""
    with threadpool_limits(1, user_api="blas"):
        yield


def factored(settings, threads=1):
    """A system factored by some threads."""
    system = System(settings, Communicator())
    window = Devices([host_update] * threads, rows=16).window(system.recorder)
    try:
        system.factor(window)
    finally:
        window.close()
    return system


def random_system(n):
    random = RandomMatrix(n, np.arange(n))
    columns = np.column_stack([random.column(col) for col in range(n + 1)])
    return columns[:, :n], columns[:, n]


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize(
    ("n", "nb"), [(1, 1), (1, 64), (2, 1), (13, 4), (31, 7), (64, 16), (97, 200)]
)
def test_the_solution_is_numpys(n, nb, depth):
    system = factored(Settings(n, nb, depth=depth))
    x = system.solve()
    a, b = random_system(n)
    reference = np.linalg.solve(a, b)
    bound = n * np.finfo(float).eps * np.linalg.cond(a) * np.max(np.abs(reference))
    assert np.max(np.abs(x - reference)) <= 8 * bound
    assert system.residual(x) < 16


@pytest.mark.parametrize("overlap", [(), ("window",), ("window", "panel-swap"), OVERLAPS])
@pytest.mark.parametrize("depth", [1, 3])
def test_threads_and_overlaps_do_not_change_the_bits(overlap, depth):
    found = [
        factored(Settings(130, 16, depth=depth, overlap=names, strip=24), threads).solve()
        for names, threads in (((), 2), (overlap, 2), (overlap, 4))
    ]
    assert found[0].tobytes() == found[1].tobytes() == found[2].tobytes()
    assert np.isfinite(found[0]).all()


def test_an_error_of_an_update_reaches_the_caller_once():
    calls = []

    def update(a, b, c):
        calls.append(len(c))
        if len(calls) > 3:
            raise ZeroDivisionError("the device is gone")
        host_update(a, b, c)

    for threads in (1, 3):
        calls.clear()
        with pytest.raises(ZeroDivisionError, match="the device is gone"):
            linpack(Settings(200, 16), Communicator(), devices=Devices([update] * threads))
    assert not [t for t in threading.enumerate() if t.name.startswith("hdgemm-update")]


def test_panels_are_hidden_beneath_updates(monkeypatch):
    """A panel and an update of the columns after it wait for each other, whatever the speed."""
    updating, has_panel = threading.Event(), threading.Event()

    def update(a, b, c):
        if c.shape[1] > 16:  # not the columns of the next panel
            updating.set()
            assert has_panel.wait(240)
        host_update(a, b, c)

    def panel(columns, first, *others):
        assert first == 0 or updating.wait(240)
        found = factor_panel(columns, first, *others)
        if first:
            has_panel.set()
        return found

    init = elimination.Elimination.__init__
    defaults = [panel if each is factor_panel else each for each in init.__defaults__]
    monkeypatch.setattr(init, "__defaults__", tuple(defaults))
    system = System(Settings(48, 16), Communicator())
    window = Devices([update], host=False).window(system.recorder)
    try:
        system.factor(window)
    finally:
        window.close()
    assert hidden_seconds(system.recorder.events)["panel"] > 0


def test_the_same_run_gives_the_same_bits_and_another_seed_others():
    solutions = [
        factored(Settings(90, 16, depth=depth, seed=seed)).solve()
        for depth, seed in ((0, 100), (0, 100), (1, 100), (0, 7))
    ]
    assert solutions[0].tobytes() == solutions[1].tobytes() != solutions[3].tobytes()
    # BLAS may add up in another order where the columns of an update are cut differently.
    np.testing.assert_allclose(solutions[0], solutions[2], rtol=1e-9)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, 1e6])
def test_a_wrong_update_fails(wrong):
    def update(a, b, c):
        host_update(a, b, c)
        c[-1, -1] += wrong

    result = linpack(Settings(60, 16), Communicator(), devices=Devices([update]))
    assert not result.passed


def test_the_rate_is_hpls():
    result = linpack(Settings(50, 16), Communicator())
    assert result.passed
    operations = 50**2 * (2 * 50 / 3 + 1.5)
    assert result.gflops == pytest.approx(operations / result.seconds / 1e9)
    assert result.to_dict()["variant"] == "WR10R2R8"


@pytest.mark.parametrize(("n", "nb"), [(1, 4), (2, 1), (5, 2), (60, 16), (97, 200), (200, 32)])
def test_single_precision_is_refined_to_double(n, nb):
    result = linpack(Settings(n, nb), Communicator(), mixed=True)
    assert result.passed
    assert result.steps <= 5


def test_the_matrix_of_hpl_mxp_has_the_absolute_sums_of_its_rows_on_the_diagonal():
    expected, _ = random_system(30)
    np.fill_diagonal(expected, np.abs(expected).sum(axis=1))
    matrix = System(Settings(30, 8), Communicator(), mixed=True)._part.a[:, :30]
    assert matrix.dtype == np.float32
    np.testing.assert_allclose(matrix, expected, rtol=1e-6)


def test_a_correction_solves_with_the_factors():
    system = factored(Settings(80, 16))
    x = system.solve()
    right = np.random.default_rng(1).standard_normal(80)
    a, _ = random_system(80)
    bound = 80 * np.finfo(float).eps * np.linalg.cond(a)
    reference = np.linalg.solve(a, right)
    assert np.max(np.abs(system.correction(right) - reference)) <= bound * np.max(np.abs(reference))
    assert system.residual(x) < 16


def test_a_grid_larger_than_the_processes_is_refused():
    with pytest.raises(InputError, match="mpiexec -n 4"):
        linpack(Settings(50, grid=(2, 2)), Communicator())


class WithoutLibrary:
    """mpi4py where no MPI library is installed."""

    def __getattr__(self, name):
        raise RuntimeError("cannot load MPI library")


@pytest.mark.parametrize("installed", [False, True])
def test_processes_of_mpiexec_without_mpi_are_refused(monkeypatch, installed):
    monkeypatch.setitem(sys.modules, "mpi4py", WithoutLibrary() if installed else None)
    assert world().size == 1
    monkeypatch.setenv("PMI_SIZE", "2")
    with pytest.raises(InputError, match="mpiexec started 2 processes"):
        world()


def test_too_little_memory_is_refused_before_it_is_taken(monkeypatch):
    monkeypatch.setattr("hdgemm.mpi.machine.available_bytes", lambda: 10**6)
    with pytest.raises(DoesNotFitError, match="missing") as caught:
        linpack(Settings(1000), Communicator())
    assert caught.value.missing == caught.value.requested - 10**6


@pytest.mark.parametrize("mixed", [False, True])
def test_the_bytes_that_are_checked_are_those_that_a_run_takes(mixed):
    settings = Settings(500, 64)
    linpack(Settings(20, 8), Communicator(), mixed=mixed)  # imports are not counted
    tracemalloc.start()
    try:
        linpack(settings, Communicator(), mixed=mixed)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak <= needed_bytes(settings, itemsize=4 if mixed else 8) <= 2 * peak


@pytest.mark.parametrize("depth", [1, 40])
@pytest.mark.parametrize("mixed", [False, True])
def test_the_default_order_fills_the_memory_of_the_machine_with_the_least(
    monkeypatch, depth, mixed
):
    # Two processes on the first machine, and two on the second with half of its memory.
    free = [("a", 4 * 10**9), ("a", 4 * 10**9), ("b", 2 * 10**9), ("b", 2 * 10**9)]
    world = Communicator()
    monkeypatch.setattr(world, "collect", lambda _: free)
    settings = Settings(1, 64, (2, 2), depth=depth)
    order = machine.largest_order(settings, world, itemsize=4 if mixed else 8)
    needed = [
        needed_bytes(replace(settings, n=each), itemsize=4 if mixed else 8)
        for each in (order, order + 64)
    ]
    assert needed[0] <= 0.8 * 10**9 < needed[1]
    assert order % 64 == 0


def test_every_run_is_checked_before_the_first_begins(monkeypatch):
    monkeypatch.setattr("hdgemm.mpi.machine.available_bytes", lambda: 10**6)
    done = CliRunner().invoke(app, ["linpack", "--n", "40,1000", "--nb", "16"])
    assert isinstance(done.exception, DoesNotFitError)
    assert "PASSED" not in done.output


def test_values_beyond_the_order_cost_nothing():
    settings = Settings(40, nb=10**12, depth=10**12)
    assert linpack(settings, Communicator()).passed
    assert needed_bytes(settings) < 10**6


@pytest.fixture(scope="module")
def halves():
    """Two halves of the first OpenCL device."""
    pytest.importorskip("pyopencl")
    try:
        return parts_of("opencl:0/2")
    except DeviceUnavailableError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("with_host", [False, True])
def test_other_devices_and_the_host_share_the_updates(halves, with_host):
    options = Options(devices=(halves[0], "host" if with_host else halves[1]), threads=1)
    result = linpack(Settings(200, 32, strip=40), Communicator(), options=options, mixed=with_host)
    assert result.passed


def test_a_device_solves_for_the_rows_of_u(halves):
    rng = np.random.default_rng(2)
    triangle = np.asfortranarray(rng.uniform(-1, 1, (70, 70)))
    columns = np.asfortranarray(rng.uniform(-1, 1, (90, 33)))
    expected = columns.copy()
    expected[9:79] = solve_triangular(triangle, columns[9:79], lower=True, unit_diagonal=True)
    with open_devices(Options(devices=halves[:1]), 1) as devices:
        devices.solves[devices.updates[0]](triangle, columns[9:79])
    unit = np.tril(triangle, -1) + np.eye(70)
    bound = 70 * np.finfo(float).eps * np.linalg.cond(unit, np.inf) * np.max(np.abs(expected))
    assert np.max(np.abs(columns - expected)) <= bound


def test_a_device_without_room_for_a_solve_leaves_it_to_the_host(halves):
    options = Options(devices=halves[:1], device_memory="1MB")
    assert linpack(Settings(300, 128, strip=300), Communicator(), options=options).passed


def test_devices_are_chosen_by_their_measured_rates(monkeypatch):
    chosen = {}
    accelerators = [DeviceInfo(name, name, accelerator=True) for name in ("cuda:0", "cuda:1")]
    monkeypatch.setattr(machine, "first_accelerator", lambda: chosen["first"])
    monkeypatch.setattr(machine, "list_devices", lambda: [DeviceInfo("host", ""), *accelerators])
    monkeypatch.setattr(machine, "rate_of", lambda name, *_: chosen["rates"][name])
    for first, rates, expected in (
        (None, {}, ("host",)),
        ("cuda:0", {"host": 1.0, "cuda:0": 50.0, "cuda:1": 6.0}, ("cuda:0", "cuda:1")),
        ("cuda:0", {"host": 5.0, "cuda:0": 4.0, "cuda:1": 0.4}, ("host", "cuda:0")),
    ):
        chosen.update(first=first, rates=rates)
        assert machine.choose_devices(Options(), 1) == expected


def test_the_command_prints_hpls_lines():
    done = CliRunner().invoke(app, ["linpack", "--n", "40,50", "--nb", "16", "--depth", "0,1"])
    assert done.exit_code == 0, done.output
    assert done.output.count("PASSED") == 4
    assert "WR00R2R8          40    16     1     1 " in done.output
    assert "4 tests completed and passed residual checks" in done.output


def test_the_command_measures_hpl_mxp():
    done = CliRunner().invoke(app, ["linpack", "--n", "60", "--nb", "16", "--mxp"])
    assert done.exit_code == 0, done.output
    assert "HPL-MxP: factored in float32, " in done.output


def test_the_command_s_json_has_the_exact_numbers():
    done = CliRunner().invoke(app, ["linpack", "--n", "40", "--nb", "16", "--json"])
    [run] = json.loads(done.stdout)["runs"]
    assert run["passed"] is True
    assert (run["n"], run["nb"], run["grid"]) == (40, 16, [1, 1])


def test_an_hpl_dat_excludes_its_values_and_takes_overlaps(tmp_path):
    path = tmp_path / "HPL.dat"
    path.write_text(DAT.replace("2 1          Ps\n2 4", "1 1          Ps\n1 1"))
    command = ["linpack", "--hpl-dat", str(path), "--overlap", "none,all", "--json"]
    done = CliRunner().invoke(app, command)
    assert "\n  line 15: 2 PFACTs (0=left, 1=Crout, 2=Right)\n" in done.stderr
    runs = json.loads(done.stdout)["runs"]
    assert [run["overlap"] for run in runs[:2]] == [[], list(OVERLAPS)]
    assert len(runs) == 16
    done = CliRunner().invoke(app, [*command, "--n", "40", "--bcast", "long"])
    assert "--hpl-dat excludes --n, --bcast" in str(done.exception)


@pytest.mark.parametrize(
    ("option", "value"),
    [("--n", "0"), ("--n", ""), ("--n", "nan"), ("--n", "10,,20"), ("--nb", "1e3"),
     ("--grid", "0x1"), ("--grid", "2"), ("--depth", "-1"), ("--bcast", "tree"),
     ("--swap", ""), ("--overlap", ""), ("--strip", "0")],
)  # fmt: skip
def test_a_wrong_value_is_refused(option, value):
    done = CliRunner().invoke(app, ["linpack", "--n", "8", "--nb", "4", option, value])
    assert isinstance(done.exception, InputError), done.output


def test_a_failed_residual_is_an_exit_code(monkeypatch):
    monkeypatch.setattr(System, "residual", lambda *_: float("nan"))
    done = CliRunner().invoke(app, ["linpack", "--n", "40", "--nb", "16"])
    assert done.exit_code == 1
    assert "FAILED" in done.output


@pytest.mark.parametrize("n", [1, 64, 256])
def test_columns_lie_an_odd_number_of_cache_lines_apart(n):
    """Else a row's elements share few cache sets, and swaps of rows take twice as long."""
    columns = System(Settings(n, 16), Communicator())._part.a
    assert columns.strides[1] // 64 % 2 == 1
