"""What pytest must know before it collects, and a cache folder that is nobody's."""

import pytest


@pytest.fixture(scope="session", autouse=True)
def cache_of_nobody(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HDGEMM_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def pytest_configure(config):
    # NumPy's own tests, which some of ours inherit, carry marks of NumPy's configuration.
    for mark in ("slow", "thread_unsafe", "leaks_references", "valgrind_error"):
        config.addinivalue_line("markers", f"{mark}: NumPy's")
