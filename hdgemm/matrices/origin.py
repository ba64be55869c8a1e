"""The process in which an iterator was begun: a forked child has none of the iterator's threads."""

from __future__ import annotations

import os

from hdgemm.errors import InputError


class Origin:
    """The process that made this object, for an iterator that waits for threads."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._process = os.getpid()

    @property
    def here(self) -> bool:
        """Whether this process is the one: a forked child may not take its locks either."""
        return os.getpid() == self._process

    def check(self) -> None:
        """Raise `InputError` in a forked child."""
        if not self.here:
            raise InputError(
                f"process {self._process} began this {self._what}, and this is its fork "
                f"{os.getpid()}: begin another one here",
                begun_by=self._process,
                process=os.getpid(),
            )
