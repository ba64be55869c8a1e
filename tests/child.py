"""Processes that tests start end with the tests, also when those are killed."""

import shutil
from collections.abc import Sequence


def ends_with_parent(command: Sequence[str]) -> list[str]:
    """Return a command that gets SIGTERM when the thread that has started it is gone."""
    setpriv = shutil.which("setpriv")  # of util-linux
    return [setpriv, "--pdeathsig", "TERM", "--", *command] if setpriv else list(command)
