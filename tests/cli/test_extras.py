"""Commands without the libraries of extras: refused at the start, with the command that helps."""

import pickle

import numpy as np
import pytest

from hdgemm.errors import InputError, MissingExtraError, load_extra
from tests.blocked_imports import hdgemm_without, python_without
from tests.cli.commands import command_line


@pytest.fixture
def folder(tmp_path):
    for name in "AB":
        np.save(tmp_path / f"{name}.npy", np.eye(40) * 3)
    return tmp_path


@pytest.mark.parametrize(
    ("command", "extra"),
    [
        ("serve --port 0 --data-dir D", "server"),
        ("worker --data-dir D", "server"),
        ("token list --data-dir D", "server"),
        ("job list", "server"),
        ("job submit A.npy B.npy", "server"),
        ("tune --report T.json", "opencl"),
        ("multiply A.npy B.npy --out C.npy --gantt g.png", "plot"),
        ("multiply A.npy B.npy --out C.npy --tilemap t.png", "plot"),
        ("multiply A.npy B.npy --out C.npy --cluster local:1", "dask"),
        ("multiply A.npy B.npy --out C.h5::x", "hdf5"),
        ("multiply A.npy B.npy --out C.npy --device opencl:0", "opencl"),
        ("lu A.npy --out F.npy --gantt g.png", "plot"),
        ("solve A.npy B.npy --out X.zarr", "zarr"),
        ("solve s3://bucket/A.zarr::A B.npy --out X.npy", "s3"),
        ("profile --quick --out P", "plot"),
    ],
)
def test_a_missing_library_is_one_sentence_and_nothing_is_written(folder, command, extra):
    before = sorted(folder.iterdir())
    done = hdgemm_without(*command.split(), cwd=folder)
    assert done.returncode == 2, done.stderr
    [line] = done.stderr.splitlines()  # no progress: it was noticed before the work
    install = (
        f"is not installed: pip install 'hdgemm[{extra}]', in a clone pip install '.[{extra}]'"
    )
    assert install in line
    assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize(
    ("blocked", "command", "extra"),
    [
        (("matplotlib",), "tune --picture p.png", "plot"),
        (("distributed",), "serve --port 0 --data-dir D --cluster local:1", "dask"),
        (("distributed",), "worker --data-dir D --cluster local:1", "dask"),
        (("psycopg",), "worker --database-url postgresql+psycopg://127.0.0.1/x", "postgres"),
        (("sqlalchemy",), "token list --data-dir D", "server"),
    ],
)
def test_one_missing_library_among_others(folder, blocked, command, extra):
    done = hdgemm_without(*command.split(), blocked=blocked, cwd=folder)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert f"pip install 'hdgemm[{extra}]'" in done.stderr.splitlines()[-1]


def test_the_demo_does_without_a_picture(folder):
    done = hdgemm_without(
        "demo",
        "--size",
        "300kB",
        "--host-memory",
        "65kB",
        "--threads",
        "1",
        "--out",
        "D",
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    assert "no picture: gantt.png needs Matplotlib, which is not installed" in done.stdout
    assert sorted(path.name for path in (folder / "D").iterdir()) == ["report.json", "trace.json"]


def test_the_client_names_its_extra():
    done = python_without(
        "import hdgemm\n"
        "from hdgemm.errors import InputError\n"
        "for wanted in (InputError, ImportError):\n"
        "    try:\n"
        "        hdgemm.Client\n"
        "    except wanted as error:\n"
        "        print(error)\n"
    )
    assert done.stdout.count("pip install 'hdgemm[server]'") == 2, done.stderr


def test_a_library_that_is_there_and_fails_is_named_with_its_error(tmp_path, monkeypatch):
    (tmp_path / "broken_plots.py").write_text("raise ImportError('built for another NumPy')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InputError, match="cannot be imported: built for another NumPy"):
        load_extra("broken_plots", "a picture needs broken_plots", "plot")
    with pytest.raises(MissingExtraError, match="not installed") as raised:
        load_extra("no_such_plots", "a picture needs no_such_plots", "plot")
    copy = pickle.loads(pickle.dumps(raised.value))
    assert (str(copy), copy.extra) == (str(raised.value), "plot")


@pytest.mark.parametrize(
    ("option", "reason"),
    [("--trace=G", "it is a folder"), ("--report=none/r.json", "there is no folder")],
)
def test_a_report_that_cannot_be_written_is_refused_at_the_start(
    folder, monkeypatch, capsys, option, reason
):
    (folder / "G").mkdir()
    monkeypatch.chdir(folder)
    hdgemm = command_line(monkeypatch, capsys)
    done = hdgemm("multiply", "A.npy", "B.npy", "--out", "C.npy", option)
    assert done.returncode == 2
    assert reason in done.stderr
    assert not (folder / "C.npy").exists()


def test_a_picture_that_fails_after_the_work_is_no_wrong_input(folder, monkeypatch, capsys):
    def fails(*_, **__):
        raise InputError("there is no font")

    monkeypatch.setattr("hdgemm.pictures.gantt.save_gantt", fails)
    monkeypatch.chdir(folder)
    hdgemm = command_line(monkeypatch, capsys)
    done = hdgemm("multiply", "A.npy", "B.npy", "--out", "C.npy", "--gantt", "g.png", "-q")
    assert done.returncode == 1
    assert "the result is complete, but its report or picture cannot be written" in done.stderr
    np.testing.assert_array_equal(np.load(folder / "C.npy"), np.eye(40) * 9)
