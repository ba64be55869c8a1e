"""What commands print and refuse: JSON, plans without a run, files that exist, wrong names."""

import json
import os
import subprocess
import sys
from itertools import count

import numpy as np
import pytest
import typer

import hdgemm
from hdgemm.cli.app import app
from hdgemm.cli.arguments import complete_device
from hdgemm.errors import DeviceError
from hdgemm.pipeline.devices import registry
from hdgemm.pipeline.plan import from_json
from tests.cli.commands import command_line


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HDGEMM_CACHE", str(tmp_path / "cache"))
    rng = np.random.default_rng(1)
    for name, shape in (("A", (30, 20)), ("B", (20, 25)), ("C", (30, 25))):
        np.save(tmp_path / f"{name}.npy", rng.standard_normal(shape))
    return command_line(monkeypatch, capsys)


#: Plans depend on the memory that is free, unless a limit is given.
HOST = ("--device", "host", "--host-memory", "50MB")
PRODUCT = ("multiply", "A.npy", "B.npy", *HOST)
RIDGE = ("ridge", "A.npy", "C.npy", "--out", "X.npy", "--alphas")


@pytest.mark.parametrize("option", ["--report", "--trace", "--gantt"])
def test_a_picture_that_cannot_be_written_leaves_the_result(run, tmp_path, option):
    (tmp_path / "full.json").symlink_to("/dev/full")
    (tmp_path / "full.png").symlink_to("/dev/full")
    name = "full.png" if option == "--gantt" else "full.json"
    done = run(*PRODUCT, "--out", "D.npy", option, name)
    assert done.returncode == 1
    assert "the result is complete" in done.stderr
    assert "No space left" in done.stderr
    assert hdgemm.verify("A.npy", "B.npy", "D.npy")


def test_multiply_prints_its_report_as_json(run, tmp_path):
    done = run(*PRODUCT, "--out", "D.npy", "--json", "--quiet")
    assert done.returncode == 0
    assert done.stderr == ""
    report = json.loads(done.stdout)
    assert report["plan"]["m"] == 30
    assert isinstance(report["seconds"], float)
    assert (tmp_path / "D.npy").exists()


def test_a_dry_run_prints_the_plan_and_touches_nothing(run, tmp_path):
    before = {path.name for path in tmp_path.iterdir()}
    done = run(*PRODUCT, "--out", "D.npy", "--dry-run", "--tile", "16,16,16")
    assert done.returncode == 0
    assert "work units 4" in done.stdout
    planned = from_json(run(*PRODUCT, "--out", "D.npy", "--dry-run", "--json").stdout)
    [same] = hdgemm.plan(
        "A.npy", "B.npy", out="D.npy", options=hdgemm.Options(devices="host", host_memory="50MB")
    )
    assert planned == same
    assert {path.name for path in tmp_path.iterdir()} - before <= {"cache"}
    assert run(*PRODUCT, "--out", "D.csv", "--dry-run").returncode == 2


def test_a_plan_that_was_printed_is_run_again(run, tmp_path):
    shown = run(*PRODUCT, "--out", "D.npy", "--dry-run", "--json", "--tile", "16,16,16").stdout
    (tmp_path / "p.json").write_text(shown)
    done = run("multiply", "A.npy", "B.npy", "--out", "D.npy", "--plan", "p.json", "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["plan"]["tile"] == [16, 16, 16]
    a, b = (np.load(tmp_path / name) for name in ("A.npy", "B.npy"))
    np.testing.assert_allclose(np.load(tmp_path / "D.npy"), a @ b)
    for wrong in (("--tile", "8,8,8"), ("--beta", "2", "--c", "C.npy"), ("--verify",)):
        refused = run("multiply", "A.npy", "B.npy", "--out", "D.npy", "--plan", "p.json", *wrong)
        assert refused.returncode == 2
        assert "--plan" in refused.stderr
    (tmp_path / "p.json").write_bytes(b"\xff{")
    refused = run("multiply", "A.npy", "B.npy", "--out", "D.npy", "--plan", "p.json")
    assert (refused.returncode, "plan in JSON" in refused.stderr) == (2, True)


def test_no_clobber_keeps_what_exists(run, tmp_path):
    old = (tmp_path / "C.npy").read_bytes()
    for command in (
        (*PRODUCT, "--out", "C.npy"),
        (*PRODUCT, "--out", "C.npy", "--dry-run"),
        ("random", 3, 3, "--out", "C.npy"),
        ("job", "fetch", "abc", "C.npy"),
    ):
        done = run(*command, "--no-clobber")
        assert done.returncode == 2
        assert "C.npy exists" in done.stderr
    assert (tmp_path / "C.npy").read_bytes() == old
    assert run(*PRODUCT, "--out", "D.npy", "--no-clobber", "-q").returncode == 0


def test_no_clobber_looks_into_stores(run):
    pytest.importorskip("h5py")
    pytest.importorskip("zarr")
    for name in ("s.h5", "s.zarr"):
        assert run(*PRODUCT, "--out", f"{name}::g/C", "--no-clobber", "-q").returncode == 0
        assert run(*PRODUCT, "--out", f"{name}::D", "--no-clobber", "-q").returncode == 0
        assert run(*PRODUCT, "--out", f"{name}::g/C", "--no-clobber", "-q").returncode == 2


@pytest.mark.parametrize(
    "arguments",
    [
        (*PRODUCT, "--out", "C.csv"),
        (*PRODUCT, "--out", "C.bin"),
        (*PRODUCT, "--out", "D.npy::30x25:float64"),
        (*PRODUCT, "--out", "D.npy", "--gantt", "g.jpg"),
        (*PRODUCT, "--out", "D.npy", "--trace", "t.png"),
        (*PRODUCT, "--out", "D.npy", "--report", "r.html"),
        ("random", 3, 3, "--out", "A.h5"),
        ("random", 3, 3, "--out", "A.h5::/A"),
        ("random", 3, 3, "--out", "A.bin::3x3:float64"),
        ("job", "fetch", "abc", "C.h5"),
        ("tune", "--report", "r.txt"),
    ],
)
def test_a_suffix_of_another_format_is_refused(run, tmp_path, arguments):
    before = sorted(tmp_path.iterdir())
    done = run(*arguments)
    assert done.returncode == 2
    assert ".npy" in done.stderr or ".png" in done.stderr or ".json" in done.stderr
    assert sorted(tmp_path.iterdir()) == before


def test_two_outputs_in_one_file_are_refused(run, tmp_path):
    done = run(*PRODUCT, "--out", "D.npy", "--report", "r.json", "--trace", "./r.json")
    assert done.returncode == 2
    assert "--trace and --report write the same file" in " ".join(done.stderr.split())
    assert not (tmp_path / "D.npy").exists()


def test_names_without_a_suffix_and_new_suffixes_are_taken(run):
    for out in ("D", "D.v2", "E.NPY"):
        assert run(*PRODUCT, "--out", out, "-q").returncode == 0


def test_other_commands_print_json(run):
    made = json.loads(run("random", 4, 3, "--out", "R.npy", "--json").stdout)
    assert (made["shape"], made["dtype"]) == ([4, 3], "float64")
    assert made["bytes"] > 96
    run(*PRODUCT, "--out", "D.npy", "-q")
    checked = run("verify", "A.npy", "B.npy", "D.npy", "--json")
    assert checked.returncode == 0
    assert json.loads(checked.stdout)["passed"]
    wrong = run("verify", "A.npy", "B.npy", "C.npy", "--json")
    assert wrong.returncode == 1
    assert not json.loads(wrong.stdout)["passed"]
    assert json.loads(run("plan", 30, 20, 25, *HOST, "--json").stdout)["problem"]["m"] == 30
    assert json.loads(run("devices", "--json").stdout)[0]["name"] == "host"


def test_usage_errors_name_the_help_of_their_command(run):
    for arguments, help_of in (
        (("multiply", "A.npy"), "hdgemm multiply --help"),
        (("multiply", "--bogus"), "hdgemm multiply --help"),
        (("job", "wtch"), "hdgemm job --help"),
        (("job",), "hdgemm job --help"),
        (("job", "submit"), "hdgemm job submit --help"),
        (("divide",), "hdgemm --help"),
        (("plan", 1, 2, 3, "--strategy", "guess"), "hdgemm plan --help"),
        (("profile", "--compare", "a.json"), "hdgemm profile --help"),
    ):
        done = run(*arguments)
        assert done.returncode == 2
        assert done.stderr.splitlines()[-1] == f"see {help_of}"
        assert len(done.stderr.splitlines()) == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((*PRODUCT, "--out", "D.npy", "--storage", "1GB"), "give --cluster"),
        (("plan", 3, 4), "three extents M N K or two files A B, got '3 4'; of a routine it takes"),
        (("worker", "--memory", "some"), "--memory is 'some'"),
        (("random", 3, 3, "--out", "R.h5::/A"), "random matrices are .npy files: write R.npy"),
        (("random", "1e3", 3, "--out", "R.npy"), "'M': '1e3' is given, it must be a valid integer"),
        (("svds", "A.npy", "--out", "U.npy", "--k", 0), "'0' is given, it must be greater than or"),
        ((*RIDGE, "1,2"), "'1,2' is given, it must be a valid number; --alphas takes several"),
        ((*RIDGE, 1, 2), "extra argument(s) (2); --alphas takes several values as --alphas X -"),
        ((*PRODUCT, "E", "--out", "D.npy"), "(E); --device takes several values"),
        ((*PRODUCT, "--out", "D.npy", "--beta", 1), "--beta 1 multiplies an old C: give --c C.npy"),
        (("plan", "A.npy", "B.npy", "--beta", 1), "--beta 1 multiplies an old C: give --c C.npy"),
        (("multiply", "B.npy", "B.npy", "--out", "D.npy"), "20×25: the columns of op(A) must be"),
        (
            ("multiply", "B.npy", "B.npy", "--out", "D.npy"),
            "transpose one by --trans-a or --trans-b",
        ),
        (("plan", "B.npy", "B.npy"), "op(B); transpose one by --trans-a or --trans-b"),
        ((*PRODUCT, "--out", "D.bin::30x10:float64"), "write D.bin::30x25:float64"),
        (("job", "submit", "A.npy"), "gemm takes 2 matrices, A, B, got 1: give B, each"),
        (("job", "submit", "--process", "solve", "A.npy"), "solve takes 2 matrices, A, B, got 1"),
        (("job", "submit", "--process", "verify", "A.npy"), "got 1: give B, C, each a .npy file"),
        (("job", "submit", "A.npy", "B.npy", "--host-memory", 4), "write the unit, '4MB' or '4GB'"),
    ],
)
def test_wrong_values_name_their_option(run, arguments, words):
    done = run(*arguments)
    assert done.returncode == 2
    assert words in done.stderr


def test_matrices_of_a_job_may_be_given_by_name(run):
    verify = ("job", "submit", "--process", "verify", "A.npy", "--set", "b=B.npy", "--c", "C.npy")
    assert "cannot reach" in run(*verify, "--url", "http://127.0.0.1:9").stderr


@pytest.mark.parametrize("dry_run", [(), ("--dry-run",)])
def test_missing_operands_are_refused_before_workers_start(run, monkeypatch, dry_run):
    monkeypatch.setattr("hdgemm.cli.cluster.open_cluster", lambda _where: pytest.fail("started"))
    done = run(
        "multiply", "A.npy", "missing.npy", "--out", "D.npy", "--cluster", "local:2", *dry_run
    )
    assert done.returncode == 2
    assert "missing.npy" in done.stderr


def test_devices_are_completed(monkeypatch):
    def listed():
        return [registry.DeviceInfo("host", "", 1), registry.DeviceInfo("cuda:0", "", 0, False)]

    monkeypatch.setattr(registry, "list_devices", listed)
    assert complete_device("") == ["auto", "host"]
    assert complete_device("h") == ["host"]

    def broken():
        raise DeviceError("no driver")

    monkeypatch.setattr(registry, "list_devices", broken)
    assert complete_device("") == ["auto", "host"]


def test_the_shell_gets_completions(tmp_path):
    words = {"COMP_WORDS": "hdgemm multiply --strategy data", "COMP_CWORD": "3"}
    done = subprocess.run(
        [sys.executable, "-m", "hdgemm"], capture_output=True, text=True, check=False,
        env={**os.environ, **words, "_HDGEMM_COMPLETE": "complete_bash"}, cwd=tmp_path,
    )  # fmt: skip
    assert done.stdout.split() == ["data-reuse", "data-placement"]


def test_every_command_that_prints_a_result_has_json():
    def leaves(command):
        nested = getattr(command, "commands", None)
        return [command] if nested is None else [x for y in nested.values() for x in leaves(y)]

    without = {
        command.name
        for command in leaves(typer.main.get_command(app))
        if not any("--json" in each.opts for each in command.params)
    }
    assert without == {"serve", "worker"}


def test_earlier_names_of_job_commands_are_hidden_aliases():
    commands = typer.main.get_command(app).commands
    group = commands["job"].commands
    assert list(group) == ["submit", "list", "watch", "cancel", "fetch"]
    for name in ("submit", "jobs", "watch", "cancel", "fetch"):
        assert commands[name].hidden
    assert commands["jobs"].callback.__name__ == group["list"].callback.__name__


class AService:
    """A client whose only job ends as told."""

    def __init__(self, status, error=None):
        self.looks = count()
        self.info = {
            "jobID": "f" * 32, "status": status, "progress": 100, "processID": "gemm", "name": "x",
            "created": "2026-11-22T05:00:00Z", "message": "it ended", "error": error,
            "detail": None, "report": {"seconds": 7200.0, "gflops": 102.4},
        }  # fmt: skip

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def job(self, _):
        from hdgemm.client._jobs import RemoteJob

        service = self

        class Connection:
            def request(self, *_, **__):
                class Answer:
                    def json(self):
                        return service.info

                return Answer()

        return RemoteJob(Connection(), self.info)

    def jobs(self, **_):
        return iter([self.job("")])


@pytest.mark.parametrize(
    ("status", "error", "code"),
    [
        ("successful", None, 0),
        ("failed", {"origin": "user", "detail": "A.npy has gone"}, 1),
        ("failed", {"origin": "service", "detail": "disk"}, 1),
        ("dismissed", None, 130),
    ],
)
def test_watch_exits_as_the_job_ended(run, monkeypatch, status, error, code):
    service = AService(status, error)
    monkeypatch.setattr("hdgemm.cli.job._client", lambda *_: service)
    for name in (("job", "watch"), ("watch",)):
        done = run(*name, "f" * 32)
        assert done.returncode == code
        assert (error or {"detail": ""})["detail"] in done.stderr
    if code == 0:
        assert "successful in 2 h 0 min, 102 GFLOP/s" in done.stdout
    assert json.loads(run("job", "watch", "fff", "--json").stdout)["status"] == status


def test_jobs_are_listed_as_a_table_and_as_json(run, monkeypatch):
    monkeypatch.setattr("hdgemm.cli.job._client", lambda *_: AService("running"))
    assert run("job", "list").stdout.splitlines()[0].split() == [
        "job", "status", "done", "process", "created", "name",
    ]  # fmt: skip
    assert json.loads(run("job", "list", "--json").stdout)[0]["jobID"] == "f" * 32
    assert run("jobs").stdout == run("job", "list").stdout


def test_job_ids_are_completed_and_an_absent_service_completes_nothing(monkeypatch):
    from types import SimpleNamespace

    from hdgemm.cli.job import _client, _complete_job
    from hdgemm.client import RemoteError

    context = SimpleNamespace(params={"url": "http://127.0.0.1:9", "token": None})
    monkeypatch.setattr("hdgemm.cli.job._client", lambda *_: AService("running"))
    assert _complete_job(context, "ff") == ["f" * 32]
    assert _complete_job(context, "0") == []

    monkeypatch.undo()
    assert _complete_job(context, "") == []
    with pytest.raises(RemoteError, match="is 'hdgemm serve' running there"):
        _client("http://127.0.0.1:9", None, 0.0).job("0")
