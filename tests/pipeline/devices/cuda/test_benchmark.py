"""The CUDA benchmark on the stand-in, and the calls of its peers."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from bench import cuda_run, cuda_sections
from bench.cuda import main, summary
from bench.cuda_data import Data, residual, spoil
from bench.cuda_peers import CublasXt, PretendCupy, PretendXt, load_cublas, plain_cupy


def test_a_dry_run_goes_through_everything_and_claims_nothing(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "bench.cuda", "--dry-run", "--out", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr
    assert "no figure below is a measurement" in done.stdout
    assert "Tflop/s" not in done.stdout
    written = json.loads((tmp_path / "cuda.json").read_text())
    assert written["is_a_measurement"] is False
    assert written["left_out"] == written["failed"] == []
    assert written["summary"]["moved_as_planned"] is True
    sections = ("ceiling", "kernels", "pipeline", "paper_shapes", "ladder", "cublasxt", "cupy")
    assert all(written[section] for section in sections)
    assert (tmp_path / "cuda.png").stat().st_size < 300_000
    assert (tmp_path / "cuda-gantt.png").stat().st_size < 300_000


def test_what_fails_is_named_and_the_rest_is_measured_and_written(tmp_path, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("CUBLAS_STATUS_INTERNAL_ERROR")

    monkeypatch.setattr(cuda_sections, "link", broken)
    monkeypatch.setattr(cuda_sections, "load_cublas", broken)
    monkeypatch.setattr(cuda_sections, "PretendXt", broken)
    monkeypatch.setattr(cuda_run, "residual", lambda _a, _b, c: 0.1 if c.shape != (384, 384) else 9)
    arguments = ["bench.cuda", "--dry-run", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", arguments)
    assert main() == 1
    written = json.loads((tmp_path / "cuda.json").read_text())
    failed = [line.partition(":")[0] for line in written["failed"]]
    assert failed == ["link", "pipeline 384", "cuBLASXt"]
    assert "WrongProductError" in written["failed"][1]
    assert all(written[section] for section in ("ceiling", "kernels", "ladder", "cupy"))
    assert [one["n"] for one in written["pipeline"]] == [256, 256]
    assert "cublasxt" not in written
    assert (tmp_path / "cuda.png").exists()


def test_results_are_there_when_the_run_is_cut_off(tmp_path, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(cuda_sections, "measure_square", interrupted)
    monkeypatch.setattr(sys, "argv", ["bench.cuda", "--dry-run", "--out", str(tmp_path)])
    with pytest.raises(KeyboardInterrupt):
        main()
    assert json.loads((tmp_path / "cuda.json").read_text())["ceiling"]


def test_without_a_gpu_it_says_why(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "bench.cuda", "--out", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
    )
    assert done.returncode == 2
    assert "no GPU to measure" in done.stdout
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("extents", [(3, 4, 5), (7, 2, 3)])
def test_cublasxt_is_called_column_major(extents):
    m, n, k = extents
    rng = np.random.default_rng(0)
    a, b, c = rng.random((m, k)), rng.random((k, n)), np.zeros((m, n))
    with CublasXt(PretendXt(), 0, 64) as peer:
        assert peer.block == 64
        peer.dgemm(a, b, c)
    np.testing.assert_allclose(c, a @ b)


def test_a_failing_status_is_an_error():
    with pytest.raises(RuntimeError, match="cublasXtCreate failed with cuBLAS status 1"):
        CublasXt(lambda *_: 1, 0, None)


def test_the_true_library_has_these_functions():
    try:
        invoke = load_cublas()
    except OSError as error:
        pytest.skip(str(error))
    assert callable(invoke)


def test_plain_cupy_multiplies():
    a, b, c = np.ones((3, 4)), np.ones((4, 2)), np.zeros((3, 2))
    assert len(plain_cupy(PretendCupy(), a, b, c, 2)) == 2
    assert (c == 4).all()


def test_a_wrong_cell_is_seen():
    a, b, c = Data(300).product(300, 200, 100)
    spoil(c)
    assert not residual(a, b, c) < 1
    np.matmul(a, b, out=c)
    assert residual(a, b, c) < 0.1
    c[17, 31] += 1e-6
    assert residual(a, b, c) > 1


def test_summary_judges_only_what_was_measured():
    assert summary({})["share_of_resident_cublas_from_n_32768"] is None
    results = {
        "pipeline": [
            {"n": 32768, "share_of_ceiling": 0.98, "tflops": 60.0, "moved_as_planned": True},
            {"n": 16384, "share_of_ceiling": 0.5, "tflops": 30.0, "moved_as_planned": True},
        ],
        "cublasxt": [{"n": 32768, "tflops": 40.0}, {"n": 32768, "tflops": 30.0}],
        "ladder": [
            {"strategy": "data-placement", "tflops": 2.0, "moved_as_planned": True},
            {"strategy": "data-reuse", "tflops": 1.0, "moved_as_planned": False},
        ],
    }
    judged = summary(results)
    assert judged["share_of_resident_cublas_from_n_32768"] == 0.98
    assert judged["times_best_cublasxt"] == {32768: 1.5}
    assert judged["data_placement_not_slower"] is True
    assert judged["moved_as_planned"] is False
