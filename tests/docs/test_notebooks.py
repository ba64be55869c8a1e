"""The notebooks run from the first cell to the last, and are stored with their outputs."""

import json
import re
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def run_notebook(content, folder, monkeypatch):
    """Run all cells of a notebook in a folder; no cell may fail but those that are tagged so."""
    nbformat = pytest.importorskip("nbformat", reason="needs the extra dev")
    nbclient = pytest.importorskip("nbclient", reason="needs the extra dev")
    pytest.importorskip("ipykernel", reason="needs the extra dev")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("IPYTHONDIR", str(folder / "ipython"))
    notebook = nbformat.reads(json.dumps(content), as_version=4)
    client = nbclient.NotebookClient(
        notebook, timeout=500, startup_timeout=500, resources={"metadata": {"path": str(folder)}}
    )
    with tempfile.TemporaryDirectory() as sockets:
        # Ports would be chosen before the kernel takes them; the path of a socket must be short.
        client.create_kernel_manager()
        client.km.transport, client.km.ip = "ipc", f"{sockets}/kernel"
        client.execute()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_takes_public_modules_only(path):
    modules = re.findall(r"(?:from|import) (hdgemm[.\w]*)", path.read_text(encoding="utf-8"))
    assert set(modules) <= {"hdgemm", "hdgemm.client", "hdgemm.linalg", "hdgemm.decomposition"}


@pytest.mark.ci
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the kernel's libraries
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_notebook_runs(path, tmp_path, monkeypatch):
    stored = json.loads(path.read_text(encoding="utf-8"))
    codes = [cell for cell in stored["cells"] if cell["cell_type"] == "code"]
    assert all(cell["execution_count"] for cell in codes), "stored without outputs"
    run_notebook(stored, tmp_path, monkeypatch)
