#: Marks in SciPy's own tests, which `test_other_suites` collects.
MARKS = (
    "array_api_backends", "fail_slow", "parallel_threads_limit", "skip_xp_backends", "slow",
    "xfail_on_32bit",
)  # fmt: skip


def pytest_ignore_collect(collection_path, config):
    """Do not import SciPy's and Dask's suites, which takes 2 s, in runs without them."""
    if collection_path.name == "test_other_suites.py" and "not ci" in config.option.markexpr:
        return True
    return None


def pytest_configure(config):
    for mark in MARKS:
        config.addinivalue_line("markers", f"{mark}: of SciPy's tests")
