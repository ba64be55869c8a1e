"""Docstrings of public functions and classes: sections, names they refer to, examples."""

import inspect
import re
import shutil
from importlib import import_module

import numpy as np
import pytest

import hdgemm
from docs.site_hooks import MADE, public_names
from tests.examples import run_examples

SECTIONS = ("Parameters", "Returns", "Raises", "See Also", "Examples")
CLASS_SECTIONS = ("See Also", "Examples")
ERROR_SECTIONS = ("See Also",)
#: Sections that a function does without: a driver that fails is a line of its result.
WITHOUT = {"hdgemm.devices": {"Parameters", "Raises"}}
#: Functions of a Dask cluster: tests/cluster/test_examples.py runs their examples.
CLUSTER = tuple(f"hdgemm.cluster.{name}" for name in ("ClusterPlan", "cholesky", "multiply", "plan",
                                                      "row_passes", "syrk"))  # fmt: skip
#: Examples that need a cluster, MPI or a service, or take a minute: tested in the folders of these.
ELSEWHERE = (*CLUSTER, "hdgemm.mpi.", "hdgemm.check_device", "hdgemm.CheckedGroup",
             "hdgemm.DeviceCheck", "hdgemm.Client", "hdgemm.client.")  # fmt: skip
#: Functions that store, show or deal out matrices: no method of a paper.
WITHOUT_SOURCE = {
    *("check_device", "create", "devices", "execute", "generated", "open", "stream", "topk"),
    *("linalg.open", "linalg.plan", "cluster.multiply", "cluster.plan", "cluster.syrk"),
}
#: What names a source: a year, or the section of a book.
SOURCE = re.compile(r"\b(19|20)\d\d\b|\bsection \d|HDGEMM: a Hybrid DGEMM library")
#: The modules whose names a "See Also" may have.
ROOMS = ("hdgemm", "hdgemm.linalg", "hdgemm.decomposition", "hdgemm.cluster", "hdgemm.mpi",
         "hdgemm.client")  # fmt: skip


def _found(name):
    value = hdgemm
    for part in name.split(".")[1:]:
        value = getattr(value, part)
    return value


FUNCTIONS = [name for name in public_names() if inspect.isfunction(_found(name))]
CLASSES = [name for name in public_names() if inspect.isclass(_found(name))]


def _is_error(name):
    return inspect.isclass(_found(name)) and issubclass(_found(name), Exception)


def _sections(name):
    """Return the text of each section of a docstring."""
    parts = re.split(r"^(\w[\w ]*)\n-+$", inspect.getdoc(_found(name)), flags=re.MULTILINE)
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))
    return sections | ({"Returns": sections["Yields"]} if "Yields" in sections else {})


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_public_function_has_every_section(name):
    missing = set(SECTIONS) - set(_sections(name)) - WITHOUT.get(name, set())
    assert not missing


@pytest.mark.parametrize("name", [name for name in FUNCTIONS + CLASSES
                                  if not _is_error(name) and name not in MADE])  # fmt: skip
def test_each_parameter_is_described_and_no_other(name):
    sections = _sections(name)
    described = re.findall(
        r"^(\S.*)$", sections.get("Parameters", "") + sections.get("Attributes", ""), re.MULTILINE
    )
    names = [
        each.strip("* ") for line in described for each in re.sub(" : .*", "", line).split(",")
    ]
    names = [each for each in names if not each.endswith("_")]  # scikit-learn's, of a fit
    assert sorted(names) == sorted(inspect.signature(_found(name)).parameters)


@pytest.mark.parametrize("name", FUNCTIONS + CLASSES)
def test_a_docstring_refers_to_public_names_only(name):
    value = _found(name)
    members = vars(value).values() if inspect.isclass(value) else ()
    texts = [inspect.getdoc(each) or "" for each in (value, *members) if callable(each)]
    public = set(public_names()) | set(ROOMS)
    for other in re.findall(r"`(hdgemm(?:\.\w+)+)[`(]", "\n".join(texts)):
        assert other in public or other.rpartition(".")[0] in public - set(ROOMS), other


@pytest.mark.parametrize("name", CLASSES)
def test_a_public_class_has_its_sections(name):
    needed = set(ERROR_SECTIONS if _is_error(name) else CLASS_SECTIONS)
    assert not needed - set(_sections(name))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_public_function_names_the_source_of_its_method(name):
    named = SOURCE.search(inspect.getdoc(_found(name))) is not None
    assert named != (name.removeprefix("hdgemm.") in WITHOUT_SOURCE)


@pytest.mark.parametrize("name", FUNCTIONS + CLASSES)
def test_what_a_docstring_refers_to_exists(name):
    entries = re.findall(r"^([^\s:][^:]*) : \S", _sections(name)["See Also"], re.MULTILINE)
    assert entries
    room = name.rpartition(".")[0]
    for other in (one.strip() for entry in entries for one in entry.split(",")):
        module, _, function = (other if "." in other else f"{room}.{other}").rpartition(".")
        assert hasattr(import_module(module), function), other
        assert other != name


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in FUNCTIONS + CLASSES
        if "Examples" in _sections(name) and not name.startswith(ELSEWHERE)
    ],
)
def test_the_examples_of_a_docstring_run(name, sandbox, cache, monkeypatch, capsys):
    monkeypatch.chdir(sandbox)
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    for stored, matrix in {"E": "T", "samples": "T", "L": "S"}.items():
        shutil.copyfile(sandbox / f"{matrix}.npy", sandbox / f"{stored}.npy")
    x, y = np.random.default_rng(0).random((2, 300))
    names = {"hdgemm": hdgemm, "np": np, "n": 300, "b": y, "x": x, "y": y}
    names["largest"] = np.zeros(300)
    if name == "hdgemm.linalg.open":
        hdgemm.linalg.lu_factor("A.npy", out="LU.npy")
    with hdgemm.set_options():  # defaults that an example sets end here
        run_examples(inspect.getdoc(_found(name)), names, capsys)
