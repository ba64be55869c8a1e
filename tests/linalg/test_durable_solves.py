"""Durable solves: interrupted in the factorisation or in a group of X, resumed to the same bits."""

import numpy as np
import pytest

import hdgemm
from hdgemm.linalg import cho_factor, cho_solve, inv, lu_factor, lu_solve, solve, solve_triangular
from hdgemm.linalg.solving.refinement import NotConvergedError, Refinement
from tests.linalg.interruption import InterruptedRunError, interrupt_after
from tests.linalg.matrices import positive_definite, random_matrix

N, P = 24, 12
OPTIONS = hdgemm.Options(tile=(1, 8, 4), host_memory="30MB")


def call_of(name, folder):
    """Return a call that takes keywords, of a routine with operands in files."""
    a, b = folder / "A.npy", folder / "B.npy"
    if name == "lu_solve":
        return lambda **keywords: lu_solve(lu_factor(np.load(a)), b, **keywords)
    if name == "cho_solve":
        return lambda **keywords: cho_solve(cho_factor(np.load(a)), b, **keywords)
    if name == "solve_triangular":
        return lambda **keywords: solve_triangular(a, b, **keywords)
    if name == "inv":
        return lambda **keywords: inv(a, **keywords)
    assume_a = "pos" if "pos" in name else "gen"
    refine = "float32" if "refine" in name else None
    return lambda **keywords: solve(a, b, assume_a=assume_a, refine=refine, **keywords)


NAMES = ["solve", "solve pos", "solve refine", "inv", "lu_solve", "cho_solve", "solve_triangular"]


def test_a_name_too_long_for_the_files_beside_it_is_refused(tmp_path):
    name = tmp_path / f"{'x' * 245}.npy"
    with pytest.raises(hdgemm.InputError, match="File name too long"):
        solve(np.eye(N), np.ones((N, 2)), out=name, checkpoint=True, options=OPTIONS)
    assert not [*tmp_path.iterdir()]


@pytest.fixture
def folder(tmp_path):
    np.save(tmp_path / "A.npy", positive_definite(N, "float64"))
    np.save(tmp_path / "B.npy", random_matrix(N, P, "float64", seed=1))
    return tmp_path


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("name", NAMES)
def test_an_interrupted_solve_goes_on_to_the_same_bits(folder, name):
    call, before, reports = call_of(name, folder), names(folder), []
    events = []
    expected = np.array(
        call(out=folder / "whole.npy", options=OPTIONS, checkpoint=True, observer=events.append)
    )
    done = names(folder)
    assert done == sorted([*before, "whole.npy", ".whole.npy.hdgemm-journal"])
    for part in (0.4, 0.95):
        operations = int(part * len(events))
        with pytest.raises(InterruptedRunError):
            call(out=folder / "X.npy", options=OPTIONS, checkpoint=True, restart=True,
                 observer=interrupt_after(operations))  # fmt: skip
        assert "X.npy" not in names(folder)
        x = call(out=folder / "X.npy", options=OPTIONS, checkpoint=True, report=reports.append)
        np.testing.assert_array_equal(x, expected)
        assert names(folder) == sorted([*done, "X.npy", ".X.npy.hdgemm-journal"])
        (folder / "X.npy").unlink()
        (folder / ".X.npy.hdgemm-journal").unlink()
    assert all(report.resumption is not None for report in reports)
    # The last interruptions came after finished slabs or groups, which were not computed again.
    assert reports[-1].resumption.kept > 0


def test_a_finished_solve_does_nothing_again(folder):
    reports, events = [], []
    for _ in range(2):
        x = solve(folder / "A.npy", folder / "B.npy", out=folder / "X.npy", options=OPTIONS,
                  checkpoint=True, report=reports.append)  # fmt: skip
    assert reports[1].resumption.finished
    assert not reports[1].stages
    y = solve(folder / "A.npy", folder / "B.npy", out=folder / "X.npy", options=OPTIONS,
              checkpoint=True, restart=True, observer=events.append)  # fmt: skip
    assert events
    np.testing.assert_array_equal(x, y)


def test_another_matrix_is_refused(folder):
    with pytest.raises(InterruptedRunError):
        solve(folder / "A.npy", folder / "B.npy", out=folder / "X.npy", options=OPTIONS,
              checkpoint=True, observer=interrupt_after(30))  # fmt: skip
    np.save(folder / "A.npy", 2 * positive_definite(N, "float64"))
    with pytest.raises(hdgemm.InputError, match="has changed"):
        solve(folder / "A.npy", folder / "B.npy", out=folder / "X.npy", options=OPTIONS,
              checkpoint=True)  # fmt: skip
    x = solve(folder / "A.npy", folder / "B.npy", out=folder / "X.npy", options=OPTIONS,
              checkpoint=True, restart=True)  # fmt: skip
    assert np.isfinite(x).all()


def test_a_singular_matrix_leaves_nothing(folder):
    np.save(folder / "A.npy", np.zeros((N, N)))
    before = names(folder)
    with pytest.raises(np.linalg.LinAlgError, match="pivot 1 "):
        solve(folder / "A.npy", folder / "B.npy", out=folder / "X.npy", options=OPTIONS,
              checkpoint=True)  # fmt: skip
    assert names(folder) == before


def test_a_checkpoint_needs_a_file(folder):
    with pytest.raises(hdgemm.InputError, match="checkpoint needs a result in a file"):
        solve(folder / "A.npy", folder / "B.npy", checkpoint=True)


def test_a_system_without_factors_in_single_precision_goes_on(folder):
    a = random_matrix(N, N, "float64")
    a[0] *= 1e300  # beyond the range of single precision
    np.save(folder / "A.npy", a)
    for operations in (20, 60):
        with pytest.raises(InterruptedRunError):
            solve(
                folder / "A.npy", folder / "B.npy", refine="float32", out=folder / "X.npy",
                options=OPTIONS, checkpoint=True, observer=interrupt_after(operations),
            )  # fmt: skip
    x = solve(folder / "A.npy", folder / "B.npy", refine="float32", out=folder / "X.npy",
              options=OPTIONS, checkpoint=True)  # fmt: skip
    plain = solve(folder / "A.npy", folder / "B.npy", options=OPTIONS)
    np.testing.assert_allclose(x, plain, rtol=1e-6)


@pytest.mark.parametrize("overwrite_a", [False, True])
def test_a_solve_that_did_not_converge_goes_on_in_double_precision(
    folder, monkeypatch, overwrite_a
):
    refine = Refinement.__call__

    def fail_first(refinement, doubles, x):
        if doubles.group == 0:
            raise NotConvergedError("group 0")
        refine(refinement, doubles, x)

    monkeypatch.setattr(Refinement, "__call__", fail_first)
    events = []

    def solved(name, **keywords):
        return solve(folder / "A.npy", folder / "B.npy", refine="float32", out=folder / name,
                     options=OPTIONS, checkpoint=True, **keywords)  # fmt: skip

    expected = np.array(solved("whole.npy", observer=events.append))
    with pytest.raises(InterruptedRunError):  # in the second group of columns of X
        solved("X.npy", overwrite_a=overwrite_a, observer=interrupt_after(len(events) - 2))
    np.testing.assert_array_equal(solved("X.npy", overwrite_a=overwrite_a), expected)
