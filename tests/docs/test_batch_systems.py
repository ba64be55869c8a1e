"""The page on batch systems: its commands and resources, as far as one machine runs them."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.docs.pages import ROOT
from tests.mpi.ranks import MPIEXEC

yaml = pytest.importorskip("yaml", reason="PyYAML comes with Dask: pip install '.[dev]'")
PAGE = (ROOT / "docs" / "how-to" / "batch-systems.md").read_text(encoding="utf-8")
HERE = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"


def block(language, text):
    """Return the block of the page that has a text."""
    (found,) = (
        each for each in re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL) if text in each
    )
    return found


@pytest.fixture
def system(tmp_path):
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((60, 60)), rng.standard_normal((60, 3))
    np.save(tmp_path / "A.npy", a)
    np.save(tmp_path / "B.npy", b)
    return tmp_path, a, b


@pytest.mark.ci
@pytest.mark.parametrize(
    ("library", "launcher"), [("MPICH", MPIEXEC), ("Open MPI", shutil.which("mpiexec.openmpi"))]
)
def test_a_host_file_starts_ranks(system, library, launcher):
    """The page's line, with two ranks on this machine."""
    if launcher is None:
        pytest.skip(f"{library} is missing")
    folder, a, b = system
    lines = block("sh", "scontrol show hostnames").splitlines()
    (line,) = (each for each in lines if each.endswith(f"# {library}"))
    command = line.replace("mpiexec", launcher).replace("-n 8", "-n 2")
    (folder / "hosts").write_text("localhost\nlocalhost\n", encoding="utf-8")
    environment = os.environ | {"PATH": HERE, "OPENBLAS_NUM_THREADS": "1"}
    if library == "Open MPI":
        environment |= {
            "MPI4PY_MPIABI": "openmpi",
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        }
    done = subprocess.run(
        command, shell=True, cwd=folder, env=environment, capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "1×2 ranks" in done.stdout
    np.testing.assert_allclose(a @ np.load(folder / "X.npy"), b, atol=1e-10)


@pytest.mark.ci
def test_workers_that_slurm_starts_multiply(system, monkeypatch):
    """The page's program with two jobs, which a program of the name `sbatch` starts here."""
    pytest.importorskip("dask_jobqueue", reason="pip install dask-jobqueue")
    folder, a, b = system
    commands = {
        "sbatch": 'cp "$1" job.$$; setsid sh job.$$ >/dev/null 2>&1 &\necho Submitted batch job $$',
        "scancel": "exit 0",
    }
    for name, text in commands.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
        (folder / name).chmod(0o755)
    program = block("python", "SLURMCluster").replace("jobs=8", "jobs=2")
    program = program.replace("/shared/", f"{folder}/").replace('"64GB"', '"1GB"')
    (folder / "program.py").write_text(program, encoding="utf-8")
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{HERE}")
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=folder, capture_output=True, text=True, timeout=300,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(np.load(folder / "C.npy"), a @ b, atol=1e-12)


def test_the_resource_of_kubernetes_fits_its_commands():
    """Names and labels agree, and Dask's commands have the options."""
    from distributed.cli.dask_worker import main as dask_worker

    resource = yaml.safe_load(block("yaml", "kind: DaskCluster"))
    name, spec = resource["metadata"]["name"], resource["spec"]
    service = spec["scheduler"]["service"]
    assert service["selector"] == {
        "dask.org/cluster-name": name,
        "dask.org/component": "scheduler",
    }
    (scheduler,), (worker,) = (spec[each]["spec"]["containers"] for each in ("scheduler", "worker"))
    named = {each["name"]: each["containerPort"] for each in scheduler["ports"]}
    ports = {port["name"]: port["port"] for port in service["ports"]}
    assert ports == {port["name"]: named[port["targetPort"]] for port in service["ports"]}
    assert f"--cluster tcp://{name}-scheduler:{ports['tcp-comm']}" in PAGE
    assert ports["http-dashboard"] == 8787  # Dask's own; the operator asks there before it scales
    options = {
        option for each in dask_worker.params for option in (*each.opts, *each.secondary_opts)
    }
    assert {each for each in worker["args"] if each.startswith("--")} <= options
    volumes = {each["name"] for each in spec["worker"]["spec"]["volumes"]}
    assert {each["name"] for each in worker["volumeMounts"]} == volumes
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert worker["command"][0].rpartition("/bin/")[0] in dockerfile
