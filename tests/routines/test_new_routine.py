"""A new routine is one description: its command, process, client and plan come from it."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hdgemm.client import Client
from hdgemm.routines import registry
from hdgemm.server.hdgemm_backend import HdgemmLibrary
from tests.server.harness import LIMIT, REPOSITORY, live, make_settings

STARTUP = Path(__file__).parent / "startup"
PATH = os.pathsep.join(map(str, (STARTUP, REPOSITORY)))
SHAPE = (5, 3)


@pytest.fixture(scope="module")
def numbers():
    rng = np.random.default_rng(0)
    return rng.standard_normal(SHAPE), rng.standard_normal(SHAPE)


def save(folder, numbers):
    for name, array in zip("AW", numbers, strict=True):
        np.save(folder / f"{name}.npy", array)


def command(folder, *words):
    """Run a command line in a process that has the toy."""
    return subprocess.run(
        [sys.executable, "-m", "hdgemm", *words], cwd=folder, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": PATH}, check=False,
    )  # fmt: skip


def test_it_is_a_command(tmp_path, numbers):
    save(tmp_path, numbers)
    a, w = numbers
    words = ["shift", "A.npy", "W.npy", "--out", "C.npy", "--json", "--quiet"]
    done = command(tmp_path, *words, "--shifts", "1", "--shifts", "2", "--rest", "D.npy",
                   "--side", "right", "--scale", "2")  # fmt: skip
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(np.load(tmp_path / "C.npy"), 2 * (a + w) + 3, rtol=1e-15)
    np.testing.assert_array_equal(np.load(tmp_path / "D.npy"), a - w)
    values = json.loads(done.stdout)["values"]
    assert values == {"largest": a.max(), "heads": w[-1].tolist()}
    text = command(tmp_path, *words[:-2], "--no-clobber")
    assert text.returncode == 2
    assert "C.npy exists" in text.stderr
    shown = command(tmp_path, "shift", "A.npy", "W.npy", "--out", "E.npy")
    assert "largest: " in shown.stdout
    refused = command(tmp_path, *words, "--scale", "-1")
    assert refused.returncode == 2
    assert "--scale" in refused.stderr
    told = command(tmp_path, "shift", "--help").stdout.replace("<left|right>", "[left|right]")
    for option in ("--rest", "--shifts", "[left|right]", "--device", "--checkpoint"):
        assert (option in told) == (option not in ("--device", "--checkpoint")), told


def test_it_has_a_plan(tmp_path, numbers):
    save(tmp_path, numbers)
    assert "expected" in command(tmp_path, "plan", "shift", "A.npy", "W.npy").stdout
    words = ["shift", "A.npy", "W.npy", "--out", "C.npy", "--dry-run", "--json"]
    assert json.loads(command(tmp_path, *words).stdout)["kind"] == "shift"
    assert not (tmp_path / "C.npy").exists()
    np.save(tmp_path / "W.npy", np.ones((4, 3)))
    refused = command(tmp_path, *words)
    assert refused.returncode == 2
    assert "A has 5 rows, and W 4 rows" in refused.stderr
    program = "import hdgemm.linalg as l; print(l.plan('shift', (5, 3), columns=3, scale=2.0))"
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": PATH}, check=True,
        capture_output=True, text=True, cwd=tmp_path,
    )  # fmt: skip
    assert "memory held" in done.stdout


def test_it_is_a_process_with_schemas_and_a_client_computes_it(tmp_path, monkeypatch, numbers):
    library = f"{HdgemmLibrary.__module__}:{HdgemmLibrary.__name__}"
    settings = make_settings(tmp_path, library=library)
    root = settings.roots[0]
    save(root, numbers)
    a, w = numbers
    monkeypatch.setattr(registry, "_ROUTINES", dict(registry._ROUTINES))
    runpy.run_path(str(STARTUP / "sitecustomize.py"))  # for the client, in this process
    with live(settings, PYTHONPATH=PATH) as server, Client(server.url) as client:
        described = server.http.get("/v1/processes/shift").json()
        assert set(described["inputs"]) == {
            "name", "priority", "a", "w", "output", "options", "scale", "shifts", "side", "rest",
        }  # fmt: skip
        assert described["inputs"]["scale"]["schema"]["minimum"] == 0
        assert described["inputs"]["side"]["schema"]["enum"] == ["left", "right"]
        assert set(described["outputs"]) == {"c", "rest", "report"}
        schemas = server.http.get("/openapi.json").json()
        assert "/v1/processes/shift/execution" in schemas["paths"]
        assert "ShiftInputs" in schemas["components"]["schemas"]

        at = "/v1/processes/shift/execution"
        inputs = {"a": {"path": "A.npy"}, "w": {"path": "W.npy"}}
        planned = server.http.post(at, json={"inputs": inputs, "dry_run": True}).json()
        assert planned["output"]["shape"] == list(SHAPE)
        assert planned["plan"]["kind"] == "shift"
        for wrong in ({"scale": -1}, {"side": "up"}, {"shifts": ["x"]}, {"w": None}):
            refused = server.http.post(at, json={"inputs": {**inputs, **wrong}})
            assert refused.status_code == 422, refused.text

        job = client.compute("shift", a, w, shifts=[4.0], rest=True).wait(timeout=LIMIT)
        np.testing.assert_allclose(job.result(), a + w + 4, rtol=1e-15)
        np.testing.assert_array_equal(job.array("rest"), a - w)
        assert job.values() == {"largest": a.max(), "heads": w[0].tolist()}
        named = client.compute("shift", root / "A.npy", w=root / "W.npy", output="C.npy").wait(
            timeout=LIMIT
        )
        np.testing.assert_allclose(np.load(root / "C.npy"), a + w, rtol=1e-15)
        assert not list(root.glob("C.*rest*"))
        assert server.http.get(f"/v1/jobs/{named.id}/results/rest").status_code == 404
        results = server.http.get(f"/v1/jobs/{job.id}/results").json()
        assert set(results) == {"c", "rest", "report"}
