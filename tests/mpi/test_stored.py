"""Stored matrices over MPI: solutions and factors on every grid, and what all ranks refuse."""

import importlib.util
import json
import re
import tracemalloc
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from typer.testing import CliRunner

import hdgemm
from hdgemm import mpi
from hdgemm.cli.app import app
from hdgemm.errors import DoesNotFitError, InputError
from hdgemm.mpi._part import Part
from hdgemm.mpi._redistribution import Place
from hdgemm.mpi._strips import Strips
from hdgemm.mpi.communicator import Communicator
from hdgemm.mpi.distribution import Axis
from hdgemm.options import Options
from tests.mpi.ranks import CASES, MPIEXEC, mpiexec, ranks_of

parallel = pytest.mark.skipif(
    MPIEXEC is None or importlib.util.find_spec("mpi4py") is None,
    reason="mpi4py or mpiexec is missing: pip install 'hdgemm[mpi]' mpich",
)
ALONE = {"comm": Communicator()}


@parallel
@pytest.mark.parametrize(("mpi", "grids"), CASES)
def test_solutions_and_factors_on_every_grid(tmp_path, mpi, grids):
    done = mpiexec(
        ranks_of(grids),
        "-m",
        "mpi4py",
        "-m",
        "tests.mpi.stored_child",
        str(tmp_path),
        *grids,
        mpi=mpi,
    )
    assert done.stdout.splitlines() == ["ok"], done.stderr


@pytest.mark.parametrize("triangle", [None, "lower", "upper"])
@pytest.mark.parametrize("chunk", [None, (4, 6)])
@pytest.mark.parametrize("nbytes", [8, 300, 10**6])
def test_strips_cover_each_element_once(triangle, chunk, nbytes):
    shape = (23, 17)
    covered = np.zeros(shape, int)
    strips = Strips.of(shape, 8, 3, chunk=chunk, triangle=triangle, nbytes=nbytes)
    for row, col, rows, cols in strips.rectangles():
        assert rows * cols <= strips.elements
        if chunk is not None:
            assert row % 4 == 0
        covered[row : row + rows, col : col + cols] += 1
    assert covered.max() == 1
    wanted = {
        None: np.ones(shape),
        "lower": np.tril(np.ones(shape)),
        "upper": np.triu(np.ones(shape)),
    }
    assert (covered[wanted[triangle] > 0] == 1).all()


def test_strips_are_whole_rows_where_they_fit():
    strips = Strips.of((10**6, 10**6), 8, 64)
    assert strips.width == 10**6
    assert strips.height * 8 * 10**6 <= 64 << 20


DIFFERENT = """
import os, sys
import hdgemm
import numpy as np
from hdgemm import mpi
from hdgemm.mpi.communicator import world

everyone = world()
here = everyone.rank == 1
os.chdir(sys.argv[1])

class Path(os.PathLike):
    def __fspath__(self):
        return "gone.npy" if here else "A.npy"
    def __str__(self):
        return "A.npy"

def attempt(a, out="X.npy", nb=4, **more):
    try:
        mpi.solve(a, np.ones(9), out=out, nb=nb, **more)
    except Exception as error:
        found = everyone.collect(f"{type(error).__name__}: {error}")
        if here:
            print("\\n".join(found))

a = np.eye(9)
attempt(Path())
attempt(a + here)
attempt(hdgemm.generated(a.shape, a.dtype, lambda rows, cols: (a + here)[rows, cols]))
attempt(a, nb=4 + here)
attempt(a, "Y.npy" if here else "X.npy")
attempt(a, "no/X.npy")
attempt(a, None if here else "X.npy")
attempt(a, refine="float32" if here else None)
if not here:
    mpi.solve = lambda a, b, **more: mpi.lu_factor(a, **more)
attempt(a)
"""


@parallel
def test_all_ranks_raise_the_error_of_one_that_sees_or_wants_another_thing(tmp_path):
    np.save(tmp_path / "A.npy", np.eye(9))
    done = mpiexec(2, "-m", "mpi4py", "-c", DIFFERENT, str(tmp_path))
    messages = [
        "rank 1 on .*: .*gone.npy",
        "rank 1 on .* sees another a than rank 0 .its content.*: give all ranks the same array",
        "rank 1 on .* sees another a than rank 0 .its content.*same function",
        "nb is 4 on rank 0 and 5 on rank 1 on ",
        "out is '.*/X.npy' on rank 0 and '.*/Y.npy' on rank 1|out on rank 1 on",
        "rank 0 on .*: cannot .*no: ",
        "out is 'given' on rank 0 and None on rank 1 on ",
        "refine is None on rank 0 and 'float32' on rank 1 on ",
        "function is 'lu_factor' on rank 0 and 'solve' on rank 1 on ",
    ]
    lines = done.stdout.splitlines()
    assert len(lines) == 2 * len(messages), done.stderr
    for number, line in enumerate(lines):
        assert re.search(messages[number // 2], line), lines
    assert [path.name for path in tmp_path.iterdir()] == ["A.npy"]


def test_a_generated_matrix_has_the_solution_of_its_array():
    a, b = np.random.default_rng(1).standard_normal((30, 30)), np.arange(30.0)
    k = hdgemm.generated(a.shape, a.dtype, lambda rows, cols: a[rows, cols])
    found, expected = (mpi.solve(each, b, nb=4, **ALONE) for each in (k, a))
    assert found.tobytes() == expected.tobytes()


FAILING = """
import os, signal, sys
from hdgemm import mpi
from hdgemm.errors import MatrixIOError
from hdgemm.matrices.filematrix import FileMatrix
from hdgemm.mpi.communicator import world

here, now = world().rank == 1, [None]

def failing(name):
    original = getattr(FileMatrix, name)
    def method(self, row, col, array):
        if here and array.size > 600 and now[0] == name:
            if sys.argv[1] == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            raise MatrixIOError("the disk is gone", path="A.npy", offset=0, length=0)
        return original(self, row, col, array)
    setattr(FileMatrix, name, method)

failing("read")
failing("write")
for now[0] in sys.argv[2:]:
    try:
        mpi.lu_factor("A.npy", out="LU.npy")
    except MatrixIOError as error:
        found = world().collect(str(error))
        if here:
            print("\\n".join(found))
"""


@parallel
def test_nothing_is_published_where_a_rank_fails(tmp_path):
    np.save(tmp_path / "A.npy", np.random.default_rng(0).standard_normal((50, 50)))

    def run(*arguments):
        done = mpiexec(2, "-m", "mpi4py", "-c", FAILING, *arguments, cwd=tmp_path)
        return done, sorted(path.name for path in tmp_path.iterdir())

    done, left = run("raises", "read", "write")
    assert left == ["A.npy"], done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 4, done.stderr
    assert all(re.fullmatch("rank 1 on .*: the disk is gone", line) for line in lines)
    done, left = run("killed", "write")
    assert done.returncode != 0
    assert "LU.npy" not in left
    # The next run takes the place of what the killed one has left.
    done, left = run("killed", "nothing")
    assert left == ["A.npy", "LU.factor.json", "LU.npy", "LU.piv.npy"], done.stderr


def test_other_wrong_arguments_are_refused(tmp_path):
    a = np.eye(4)
    for wrong, message in (
        (lambda: mpi.solve(np.ones((3, 4)), np.ones(3), **ALONE), "square"),
        (lambda: mpi.solve(a, np.ones(3), **ALONE), "b has 3 rows"),
        (lambda: mpi.solve(a, a, grid="2x2", **ALONE), "mpiexec -n 4"),
        (lambda: mpi.solve(a, a, nb=-1, **ALONE), "at least 1"),
        (lambda: mpi.solve(a, a, comm=3), "communicator of mpi4py"),
        (lambda: mpi.solve(a.astype("U1"), np.ones(4), **ALONE), "U1"),
        (lambda: mpi.lu_factor(a, out=np.ones((4, 4)), **ALONE), "location of a new file"),
        (lambda: mpi.lu_factor(a, out=tmp_path / "x.zarr", **ALONE), "cannot hold factors"),
        (lambda: mpi.solve(a, a, out=tmp_path / "x.h5:/x", **ALONE), "two colons .*x.h5::/x"),
        (lambda: mpi.solve(a, a, refine="float16", **ALONE), "refine must be"),
        (lambda: mpi.solve(a, a, pivoting="full", **ALONE), "pivoting must be"),
        (lambda: mpi.solve(a, a, assume_a="pos", pivoting="tournament", **ALONE), "no pivots"),
        (lambda: mpi.solve(a, a, out="s3://bucket/x.zarr", **ALONE), "object store"),
        (lambda: mpi.lu_solve((a, [0, 1, 2, 2]), a, **ALONE), r"piv\[3\] is 2"),
        (lambda: mpi.lu_solve(a, a, **ALONE), "lu_and_piv must be the pair"),
    ):
        with pytest.raises(InputError, match=message):
            wrong()


def test_factors_of_a_part_go_to_a_file(tmp_path):
    a = np.random.default_rng(4).standard_normal((9, 9))
    part = mpi.BlockCyclicArray(a, (9, 9), 2, (1, 1))
    lu, piv = mpi.lu_factor(part, out=tmp_path / "LU.npy", **ALONE)
    assert np.asarray(lu).tobytes() == mpi.lu_factor(part, **ALONE).lu.local.tobytes()
    assert (hdgemm.linalg.open(tmp_path / "LU.npy").piv == piv).all()


def test_a_part_has_the_shape_of_its_descriptor():
    a, desc = np.asfortranarray(np.diag([1.0, 2, 4, 0])[:, :3]), [1, 0, 3, 3, 2, 2, 0, 0, 4]
    part = mpi.BlockCyclicArray.from_descriptor(a, desc, (1, 1))
    assert mpi.solve(part, np.ones(3), **ALONE).tolist() == [1, 0.5, 0.25]
    for wrong, message in (
        (lambda: mpi.BlockCyclicArray(a[0], (3, 3), 2, (1, 1)), "two dimensions"),
        (lambda: mpi.BlockCyclicArray(a, (3, 3), 0, (1, 1)), "nb 0"),
        (lambda: part.from_descriptor(a, [1, 0, 3, 3, 2, 4, 0, 0, 4], (1, 1)), "pdgemr2d"),
        (lambda: part.from_descriptor(a, [502, 0, 3], (1, 1)), "9 numbers"),
        (lambda: mpi.solve(mpi.BlockCyclicArray(a, (4, 4), 2, (1, 1)), a, **ALONE), r"\(4, 4\)"),
        (lambda: mpi.solve(mpi.BlockCyclicArray(a, (4, 3), 2, (1, 1)), a, **ALONE), "square"),
        (lambda: mpi.solve(part, part, nb=3, **ALONE), "leave them out"),
        (lambda: mpi.solve(part, mpi.BlockCyclicArray(a, (3, 3), 3, (1, 1)), **ALONE), "different"),
        (lambda: mpi.cholesky(part, **ALONE), "lower=True"),
    ):
        with pytest.raises(InputError, match=message):
            wrong()


@pytest.mark.parametrize(("stored", "computed"), [("float16", "float32"), ("int32", "float64")])
def test_elements_of_other_types_are_converted(stored, computed):
    a, b = np.diag([1, 2, 4]).astype(stored), np.ones(3, stored)
    x = mpi.solve(a, b, nb=2, **ALONE)
    assert x.dtype == computed
    assert x.tolist() == [1, 0.5, 0.25]


def test_a_process_that_needs_more_than_its_memory_says_how_much_is_missing():
    options = Options(host_memory="100kB")
    with pytest.raises(DoesNotFitError) as caught:
        mpi.solve(np.eye(100), np.ones(100), options=options, **ALONE)
    assert caught.value.missing == caught.value.requested - 10**5 > 0


def test_a_zero_of_stored_factors_is_a_singular_matrix():
    with pytest.raises(np.linalg.LinAlgError, match="pivot 2 is exactly zero"):
        mpi.lu_solve((np.diag([1.0, 0.0, 1.0]), np.arange(3)), np.ones(3), nb=2, **ALONE)


def test_the_file_of_an_operand_must_not_change_during_the_run(tmp_path, monkeypatch):
    np.save(tmp_path / "A.npy", np.eye(8))
    from hdgemm.mpi._run import Run

    factor = Run.factor

    def changed(self, part):
        np.save(tmp_path / "A.npy", 2 * np.eye(8))
        return factor(self, part)

    monkeypatch.setattr(Run, "factor", changed)
    with pytest.raises(OSError, match="during the run"):
        mpi.solve(tmp_path / "A.npy", np.ones(8), out=tmp_path / "X.npy", **ALONE)
    assert [path.name for path in tmp_path.iterdir()] == ["A.npy"]


@parallel
def test_the_command_solves_over_mpi_and_one_rank_speaks(tmp_path):
    rng = np.random.default_rng(3)
    a, b = rng.standard_normal((60, 60)), rng.standard_normal((60, 3))
    np.save(tmp_path / "A.npy", a)
    np.save(tmp_path / "B.npy", b)
    np.save(tmp_path / "Z.npy", np.diag([1.0] * 50 + [0.0] * 10))
    command = ["-m", "hdgemm", "solve", "A.npy", "B.npy", "--out", "X.npy", "--mpi"]
    done = mpiexec(2, *command, "--nb", "16", "--grid", "2x1", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["n"], found["columns"], found["grid"]) == (60, 3, [2, 1])
    x = np.load(tmp_path / "X.npy")
    error = np.abs(a @ x - b).max() / (np.abs(a).sum(axis=1).max() * np.abs(x).max())
    assert error <= 16 * 60 * np.finfo(float).eps
    words = ["--nb", "16", "--grid", "2x1", "--pivoting", "tournament"]
    done = mpiexec(2, *command, *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    other = np.load(tmp_path / "X.npy")
    assert other.tobytes() != x.tobytes()
    np.testing.assert_allclose(other, x, rtol=1e-8)
    command[3] = "Z.npy"
    done = mpiexec(2, *command, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.count("a is singular: pivot 51 is exactly zero") == 1


def test_one_process_refines_and_plans_a_tournament(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("A.npy", np.random.default_rng(3).standard_normal((60, 60)))
    np.save("B.npy", np.ones((60, 3)))
    words = ["solve", "A.npy", "B.npy", "--mpi", "--nb", "16"]
    plan = CliRunner().invoke(
        app, [*words, "--out", "P.npy", "--pivoting", "tournament", "--dry-run"]
    )
    assert "tournament pivoting" in plan.output
    for name, more in (("X.npy", []), ("R.npy", ["--refine"])):
        assert CliRunner().invoke(app, [*words, "--out", name, *more]).exit_code == 0
    x, refined = np.load("X.npy"), np.load("R.npy")
    assert refined.tobytes() != x.tobytes()
    np.testing.assert_allclose(refined, x, rtol=1e-8)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--transposed"], "--transposed does not go with --mpi"),
        (["--tile", "8,8,8"], "--tile does not go with --mpi"),
        (["--grid", "2"], "PxQ"),
        (["--assume-a", "pos", "--pivoting", "tournament"], "no pivots"),
    ],
)
def test_options_without_effect_over_mpi_are_refused(tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    np.save("A.npy", np.eye(4))
    done = CliRunner().invoke(app, ["solve", "A.npy", "A.npy", "--out", "X.npy", "--mpi", *words])
    assert isinstance(done.exception, InputError)
    assert message in str(done.exception)
    for alone, text in (
        (["--nb", "3"], "give --mpi"),
        (["--pivoting", "tournament"], "--pivoting tournament of solve is for --mpi"),
    ):
        done = CliRunner().invoke(app, ["solve", "A.npy", "A.npy", "--out", "X.npy", *alone])
        assert isinstance(done.exception, InputError)
        assert text in str(done.exception)


@pytest.mark.parametrize(("p", "q"), [(1, 3), (3, 1), (2, 3)])
@pytest.mark.parametrize("trans", [False, True])
@pytest.mark.parametrize(("rows", "cols", "nbytes"), [
    (40, 23, 200), (5, 23, 200), (23, 5, 200), (480, 1, 800),
])  # fmt: skip
def test_readers_read_each_element_once(p, q, trans, rows, cols, nbytes):
    """Ranks that hold the same rows read them; all ranks, where rows or their blocks are few."""
    seen, teams = np.zeros((rows, cols), int), set()
    strips = Strips.of((rows, cols), 8, p * q, nbytes=nbytes)
    for rank in range(p * q):
        row, col = divmod(rank, q)
        axes = Axis(rows + 4, 4, p, row), Axis(cols + 4, 4, q, col)
        extents = (cols + 4, rows + 4) if trans else (rows + 4, cols + 4)
        axes = tuple(replace(x, extent=n) for x, n in zip(axes, extents, strict=True))
        groups = SimpleNamespace(rank=col, size=q), SimpleNamespace(rank=row, size=p)
        part = Part(None, *axes, *groups, SimpleNamespace(rank=rank, size=p * q))
        place = Place(part, first=4, trans=trans, top=4)
        team, rectangles = place.readers(strips)
        assert len(team.processes) == team.ranks.size
        assert team.processes[team.ranks.rank] == ((col, row) if trans else (row, col))
        teams.add(team.ranks.size)
        for each in list(rectangles)[team.ranks.rank :: team.ranks.size]:
            seen[each.row : each.row + each.rows, each.col : each.col + each.cols] += 1
    assert (seen == 1).all()
    assert len(teams) == 1
    if rows == 480:
        assert teams == {p * q}


def test_the_plan_of_ranks_states_memory_words_and_seconds():
    found = mpi.plan("lu", 500_000, ranks=64, host_memory="400GB", rate=2e13, link="25GB")
    n, side = 500_000, 8
    assert found.grid == (side, side)
    assert found.host_bytes == pytest.approx(8 * n * n / 64, rel=0.05)
    pivots = n * (side - 1) * (2 + 2 * 192)
    assert found.words == pytest.approx(3 * n**2 / (2 * side) + pivots)
    assert found.flops == pytest.approx(2 * n**3 / 3, rel=1e-5)
    update = found.expected_phase_seconds["update"]
    assert update == pytest.approx(2 * n**3 / 3 / (64 * 2e13), rel=1e-5)
    assert found.expected_seconds >= found.flops / (64 * 2e13)
    assert found.planned_bytes == {"load1": 8 * n**2, "store2": 8 * n**2}
    assert 0 < found.efficiency < 1
    half = mpi.plan("cholesky", n, ranks=64, host_memory="400GB", rate=2e13)
    assert half.flops == pytest.approx(found.flops / 2, rel=1e-4)


def test_the_plan_counts_stored_bytes_of_low_precision():
    how = {"ranks": 4, "host_memory": "800GB", "rate": 1e12}
    n, columns = 400_000, 7
    whole, narrow = (mpi.plan("solve", n, columns, dtype=x, **how) for x in ("float64", "int8"))
    assert (narrow.dtype, narrow.host_bytes) == ("float64", whole.host_bytes)
    assert whole.planned_bytes["load1"] == 8 * n * (n + columns)
    assert narrow.planned_bytes == {**whole.planned_bytes, "load1": n * (n + columns)}
    read, shorter = (each.expected_phase_seconds["read"] for each in (whole, narrow))
    assert shorter == pytest.approx(read / 8)
    assert mpi.plan("lu", n, dtype="float16", **how).dtype == "float32"
    with pytest.raises(InputError, match="uint64"):
        mpi.plan("lu", n, dtype="uint64", **how)


@pytest.mark.parametrize(("stored", "computed"), [("int8", "float64"), ("float16", "float32")])
def test_a_dry_run_counts_the_stored_bytes_of_each_operand(tmp_path, monkeypatch, stored, computed):
    monkeypatch.chdir(tmp_path)
    n, columns, right = 40, 3, np.dtype(computed)
    np.save("A.npy", np.eye(n).astype(stored))
    np.save("B.npy", np.ones((n, columns), right))
    words = ["solve", "A.npy", "B.npy", "--out", "X.npy", "--mpi", "--dry-run", "--json"]
    found, half = (
        json.loads(CliRunner().invoke(app, [*words, *more]).stdout)
        for more in ([], ["--assume-a", "pos"])
    )
    size = np.dtype(stored).itemsize
    assert found["dtype"] == half["dtype"] == computed
    assert found["bytes_read"] == size * n * n + right.itemsize * n * columns
    assert half["bytes_read"] == size * n * n // 2 + right.itemsize * n * columns
    assert half["flops"] < found["flops"]


def test_the_plan_of_panels_counts_their_multiply_adds():
    """A panel of m rows takes m·NB²/2, of which a process of P has 1/P; alone, nothing is sent."""
    n, nb, rate = 19_200, 192, 1e12
    for p in (1, 4):
        grid, expected = (p, 1), n * n * nb / (4 * p)
        found = mpi.plan("lu", n, ranks=p, grid=grid, rate=rate, link=4e18, host_memory="1TB")
        latency = 2e-6 * found.messages
        spent = found.expected_phase_seconds["panel"] - latency
        assert spent == pytest.approx(2 * expected / rate, rel=1e-6)


def test_the_plan_of_a_tournament_has_messages_for_each_panel():
    n, nb, how = 192_000, 192, {"ranks": 64, "rate": 1e12, "link": "10GB", "host_memory": "1TB"}
    partial, tournament = (
        mpi.plan("lu", n, pivoting=each, **how) for each in ("partial", "tournament")
    )
    assert (partial.messages, tournament.messages) == (3 * n, (3 + 7) * n // nb)
    assert tournament.words < partial.words
    spent = [dict(found.expected_phase_seconds) for found in (partial, tournament)]
    assert spent[1].pop("panel") != spent[0].pop("panel")
    assert spent[0] == spent[1]
    assert "tournament" in str(tournament)
    assert "tournament" not in str(partial)
    alone = mpi.plan("lu", n, ranks=1, rate=1e12, host_memory="1TB", pivoting="tournament")
    assert alone.messages == 0
    with pytest.raises(InputError, match="no pivots"):
        mpi.plan("cholesky", n, pivoting="tournament", **how)
    words = ["plan", "lu", "500", "--pivoting", "tournament"]
    assert "give --ranks" in str(CliRunner().invoke(app, words).exception)
    done = CliRunner().invoke(app, [*words, "--ranks", "4", "--gflops", "9"])
    assert "tournament pivoting" in done.output


def test_the_plan_refuses_with_the_missing_bytes_and_the_ranks_that_suffice():
    how = {"host_memory": "150GB", "rate": 1e12, "refine": "float32"}
    with pytest.raises(DoesNotFitError, match="or take 32 ranks") as caught:
        mpi.plan("solve", 500_000, ranks=4, **how)
    assert caught.value.missing == caught.value.requested - 150 * 10**9
    assert mpi.plan("solve", 500_000, ranks=32, **how).ranks == 32
    for wrong in (("qr", 4), ("lu", 0)):
        with pytest.raises(InputError):
            mpi.plan(*wrong, ranks=2)
    done = CliRunner().invoke(
        app, ["plan", "lu", "500000", "--ranks", "64", "--host-memory", "400GB", "--gflops", "900"]
    )
    assert "8×8 ranks of 900 GFLOP/s" in done.output


def test_the_command_plans_systems_of_positive_definite_matrices():
    words = ["plan", "solve", "500", "--assume-a", "pos"]
    assert "give --ranks" in str(CliRunner().invoke(app, words).exception)
    done = CliRunner().invoke(app, [*words, "--ranks", "4", "--gflops", "9"])
    assert "float64, positive definite" in done.output


def test_the_plan_goes_by_slabs_where_the_memory_is_too_small():
    how = {"ranks": 4, "host_memory": "100GB", "rate": 1e12}
    n, square = 500_000, 8 * 500_000**2
    found = mpi.plan("lu", n, **how)
    count = -(-n // found.slab_width)
    assert count == 6
    assert found.host_bytes <= 100 * 10**9
    read, written = found.planned_bytes.values()
    again = read - 2 * square  # A, and the pass of interchanges
    assert again == pytest.approx(8 * n**3 / (3 * found.slab_width), rel=0.3)
    assert written == 3 * square
    assert f"6 slabs of {found.slab_width} columns" in str(found)
    solved = mpi.plan("solve", n, 5, **how)
    assert solved.slab_width == found.slab_width
    assert solved.planned_bytes["store2"] == square + 8 * n * 5
    by_cholesky = mpi.plan("solve", n, 5, assume_a="pos", **how)
    assert by_cholesky.planned_bytes["store2"] == square + 8 * n * 5
    again = by_cholesky.planned_bytes["load1"] - 3 * square / 2  # A, and L twice
    assert again == pytest.approx(8 * n**3 / (6 * found.slab_width), rel=0.03)
    half = mpi.plan("cholesky", n, **how)
    assert half.slab_width == found.slab_width
    again = half.planned_bytes["load1"] - square / 2
    assert again == pytest.approx(8 * n**3 / (6 * found.slab_width), rel=0.03)
    assert half.planned_bytes["store2"] == square
    with pytest.raises(DoesNotFitError, match="a slab of"):
        mpi.plan("lu", n, ranks=4, host_memory="1GB", rate=1e12)


def test_the_plan_counts_refinement():
    how = {"ranks": 4, "host_memory": "800GB", "rate": 1e12}
    whole, refined = (
        mpi.plan("solve", 500_000, 5, refine=each, **how) for each in (None, "float32")
    )
    assert refined.host_bytes > 1.45 * whole.host_bytes
    assert refined.expected_phase_seconds["update"] == whole.expected_phase_seconds["update"] / 2
    assert "refined from float32" in str(refined)
    with pytest.raises(InputError, match="goes with solve"):
        mpi.plan("lu", 500, refine="float32", **how)
    with pytest.raises(DoesNotFitError, match="ranks"):
        mpi.plan("solve", 500_000, refine="float32", **how | {"host_memory": "600GB"})


def test_the_plan_holds_what_a_solution_takes():
    """One process takes no more memory than its plan says, strips included."""
    n, columns = 700, 40
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((n, n)), rng.standard_normal((n, columns))
    mpi.solve(a[:5, :5], b[:5], **ALONE)  # imports are not counted
    tracemalloc.start()
    try:
        mpi.solve(a, b, nb=64, **ALONE)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak <= mpi.plan("solve", n, columns, ranks=1, nb=64, rate=1e9).host_bytes


@pytest.mark.parametrize("where", ["A.h5::/A", "A.zarr", "A.bin::30x30:float64:F", "A.npy"])
def test_every_format_is_read_and_row_major_files_are_written(tmp_path, monkeypatch, where):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("hdgemm.mpi._strips.STRIP_BYTES", 1000)
    a = np.random.default_rng(2).standard_normal((30, 30))
    b = np.arange(60.0).reshape(30, 2)
    with hdgemm.create(where, (30, 30), "float64") as stored:
        stored[:, :] = a
    mpi.solve(where, b, out="X.bin::30x2:float64", nb=7, **ALONE)
    x = np.fromfile("X.bin").reshape(30, 2)
    error = np.abs(a @ x - b).max() / (np.abs(a).sum(axis=1).max() * np.abs(x).max())
    assert error <= 16 * 30 * np.finfo(float).eps
    assert mpi.solve(where, b[:, :0], **ALONE).shape == (30, 0)


STORES = """
import sys
import numpy as np
from hdgemm import mpi
from hdgemm.matrices import zarr_draft
import hdgemm.mpi._strips as strips
from hdgemm.mpi.communicator import world

zarr_draft.CHUNK, strips.STRIP_BYTES = (8, 4), 200
rng = np.random.default_rng(5)
a, b = rng.standard_normal((40, 40)), rng.standard_normal((40, 9))
array = mpi.solve(a, b, nb=6)
for out in sys.argv[1:] * 2:
    try:
        x = mpi.solve(a, b, out=out, nb=6)
        found = (np.asarray(x) == array).all()
    except Exception as error:
        found = error
    if (everyone := world().collect(str(found))) and world().rank == 0:
        print(*everyone, sep="\\n")
"""


@parallel
def test_all_ranks_write_hdf5_and_zarr(tmp_path):
    """Each chunk is one rank's; a second run replaces arrays, but no HDF5 file."""
    outs = ["X.h5::/group/x", "X.zarr", "Y.zarr::group/x"]
    done = mpiexec(2, "-m", "mpi4py", "-c", STORES, *outs, cwd=tmp_path)
    lines = done.stdout.splitlines()
    assert len(lines) == 12, done.stderr
    assert lines[:6] == lines[8:] + 2 * ["True"] == 6 * ["True"], lines
    assert all("X.h5 exists, and ranks write only new HDF5 files" in each for each in lines[6:8])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["X.h5", "X.zarr", "Y.zarr"]


def test_factors_go_to_column_major_files_only(tmp_path):
    with pytest.raises(InputError, match="order 'F'"):
        mpi.lu_factor(np.eye(3), out=f"{tmp_path}/LU.bin::3x3:float64", **ALONE)
    assert not list(tmp_path.iterdir())


MANY = """
import numpy as np
from hdgemm import mpi

a = np.eye(4)
for _ in range(700):
    assert mpi.slogdet(a, nb=2) == (1, 0)
"""


@pytest.mark.campaign
def test_a_program_makes_more_calls_than_mpi_has_communicators(tmp_path):
    done = mpiexec(2, "-m", "mpi4py", "-c", MANY, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
