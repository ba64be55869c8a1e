"""Configuration of all tests: signals, marks, and a cache folder of their own."""

import signal

import pytest


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HDGEMM_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def own_signals():
    """Restore the handlers that a command sets when it runs inside the test's process."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def pytest_configure(config):
    # A shell starts background jobs with SIGINT ignored, nohup ignores SIGHUP, and processes inherit
    # both. Tests that interrupt themselves or a child need the handlers of a terminal.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    # NumPy's own tests, which some of ours inherit, carry marks of NumPy's configuration.
    for mark in ("slow", "thread_unsafe", "leaks_references", "valgrind_error"):
        config.addinivalue_line("markers", f"{mark}: NumPy's")
