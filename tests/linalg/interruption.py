"""Runs of linear algebra that an observer interrupts."""

import itertools


class InterruptedRunError(Exception):
    pass


def interrupt_after(operations):
    """Return an observer that raises at the first operation after some."""
    count = itertools.count(1)

    def observe(_event):
        if next(count) > operations:
            raise InterruptedRunError

    return observe
