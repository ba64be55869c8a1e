"""compose.yaml confines each container; its commands over MPI run, here as two shells."""

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.docs.pages import ROOT

yaml = pytest.importorskip("yaml", reason="PyYAML comes with Dask: pip install '.[dev]'")
SERVICES = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))["services"]


@pytest.mark.parametrize("name", SERVICES)
def test_each_container_is_confined(name):
    service = SERVICES[name]
    assert service["cap_drop"] == ["ALL"]
    assert service["read_only"] is True
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "/tmp" in service["tmpfs"]
    assert service["mem_limit"]
    assert service["pids_limit"]
    assert name in {"dask-worker", "mpi-0", "mpi-1"} or "healthcheck" in service
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))


MPIEXEC = Path(sys.executable).with_name("mpiexec.hydra")


@pytest.mark.ci
@pytest.mark.skipif(not MPIEXEC.exists(), reason="MPICH is missing: pip install mpich")
def test_two_shells_run_linpack_and_solve_as_the_containers_do(tmp_path):
    """The containers' commands, with two names of this machine for theirs."""
    paths = f"{MPIEXEC.parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": paths, "ORDER": "300", "OPENBLAS_NUM_THREADS": "1"}
    names = {"mpi-0,mpi-1": f"{socket.gethostname()},localhost", "$$": "$"}

    def command(name):
        (script,) = SERVICES[name]["command"]
        for old, new in names.items():
            script = script.replace(old, new)
        return [*SERVICES[name]["entrypoint"], script]

    assert shutil.which("hdgemm", path=paths)
    with subprocess.Popen(command("mpi-1"), cwd=tmp_path, env=environment) as other:
        try:
            done = subprocess.run(
                command("mpi-0"), cwd=tmp_path, env=environment, timeout=500, check=False,
                capture_output=True, text=True,
            )  # fmt: skip
        finally:
            other.kill()
    assert done.returncode == 0, done.stderr
    assert "PASSED" in done.stdout
    a, b, x = (np.load(tmp_path / f"{name}.npy") for name in "ABX")
    np.testing.assert_allclose(a @ x, b, atol=1e-9)
