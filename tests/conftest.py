"""What pytest must know before it collects."""


def pytest_configure(config):
    # NumPy's own tests, which some of ours inherit, carry marks of NumPy's configuration.
    for mark in ("slow", "thread_unsafe", "leaks_references", "valgrind_error"):
        config.addinivalue_line("markers", f"{mark}: NumPy's")
