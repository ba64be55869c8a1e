"""Configuration of all tests: signals, marks, and a cache folder of their own."""

import gc
import os
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# BLAS threads that have no work sleep at once: by default they spin for 25 ms, on cores that other
# tests use. OpenBLAS reads this when NumPy is imported, here and in child processes.
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")

# The same examples each time, none of which has a time limit: a busy machine is no failure.
# `--hypothesis-profile drawn`, as in `make test-all`, draws others.
for name, same in (("fixed", True), ("drawn", False)):
    settings.register_profile(
        name, derandomize=same, deadline=None, database=None,
        suppress_health_check=[HealthCheck.too_slow], print_blob=True,
    )  # fmt: skip
settings.load_profile("fixed")


@pytest.fixture(scope="session")
def built_programs(tmp_path_factory):
    """The folder of built OpenCL programs of all modules and of all workers of pytest-xdist."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "programs"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory, built_programs):
    """A cache folder for each module, without rates that others have measured."""
    cache = tmp_path_factory.mktemp("cache")
    (cache / "opencl").mkdir()
    (cache / "opencl" / "programs").symlink_to(built_programs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HDGEMM_CACHE", str(cache))
        yield


@pytest.fixture(autouse=True)
def own_signals():
    """Restore the handlers that a command sets when it runs inside the test's process."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def pytest_collection_modifyitems(items):
    """Put the tests into one order for all workers, in whatever order each collects them.

    Those that share servers come first: pytest-xdist gives them to one worker, and the others take
    tests from its end of the list. They wait for processes while the others compute.
    """
    here = Path(__file__).parent

    def key(item):
        return not item.path.is_relative_to(here / "server"), item.path

    items.sort(key=key)


def pytest_configure(config):
    worker, here = getattr(config, "workerinput", None), Path(__file__).parent
    if worker is not None and [Path(each).resolve() for each in config.args] == [here]:
        # Modules are compiled when they are first imported. Workers that began with the same ones
        # would all compile all of them.
        parts = sorted(str(path.parent) for path in here.glob("*/__init__.py"))
        parts += sorted(map(str, here.glob("test_*.py")))
        first = int(worker["workerid"].removeprefix("gw")) * len(parts) // worker["workercount"]
        config.args[:] = parts[first:] + parts[:first]
    # A shell starts background jobs with SIGINT ignored, nohup ignores SIGHUP, and processes
    # inherit both. Tests that interrupt themselves or a child need the handlers of a terminal.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    # NumPy's own tests, which some of ours inherit, carry marks of NumPy's configuration.
    for mark in ("slow", "thread_unsafe", "leaks_references", "valgrind_error"):
        config.addinivalue_line("markers", f"{mark}: NumPy's")


def pytest_collection():
    gc.disable()  # what is made there stays, and looking for garbage takes a seventh of the time


def pytest_collection_finish():
    # The garbage collector need not visit them again and again, nor run after each 700 new objects,
    # which took some hundredths of the processor time.
    gc.enable()
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
