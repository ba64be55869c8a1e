"""Processes that tests start end with the tests, also when those are killed."""

import shutil
from collections.abc import Sequence
from typing import Final

#: First line of a child's program: a shell that runs the tests in the background ignores SIGINT,
#: and nohup ignores SIGHUP, also in what the tests start.
HEARS_SIGNALS: Final = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "signal.signal(signal.SIGHUP, signal.SIG_DFL)"
)


def ends_with_parent(command: Sequence[str]) -> list[str]:
    """Return a command that gets SIGTERM when the thread that has started it is gone."""
    setpriv = shutil.which("setpriv")  # of util-linux
    return [setpriv, "--pdeathsig", "TERM", "--", *command] if setpriv else list(command)
