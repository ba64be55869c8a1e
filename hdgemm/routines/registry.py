"""Register of the routines by name."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from hdgemm.errors import InputError, nearest_name
from hdgemm.routines import (
    _factorisations as factorisations,
    _products as products,
    _systems as systems,
    _tall as tall,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hdgemm.routines.description import Routine

_ROUTINES: Final[dict[str, Routine]] = {}
_NAME: Final = re.compile(r"[a-z][a-z0-9]{0,15}")


def register(routine: Routine) -> Routine:
    """Add a routine, before a command line or a service is made.

    Raises
    ------
    InputError
        For a name that is taken, or that is no name of a process.
    """
    for name in (routine.name, *routine.aliases):
        if any(name in (each.name, *each.aliases) for each in _ROUTINES.values()):
            raise InputError(f"there is a routine {name} already")
    if not _NAME.fullmatch(routine.name):
        raise InputError(f"{routine.name!r} is no name of a process: write small letters, digits")
    _ROUTINES[routine.name] = routine
    return routine


def planned() -> Mapping[str, Routine]:
    """Return the routines that have a plan, by name and by alias."""
    return {
        name: routine for routine in _ROUTINES.values() for name in (routine.name, *routine.aliases)
    }


def commands() -> Mapping[str, Routine]:
    """Return the routines that are commands and processes, by name."""
    return _ROUTINES


def meant(name: str, known: Iterable[str]) -> str | None:
    """Return the routine that has this alias, or the known name that a misspelt one resembles."""
    routine = planned().get(name)
    return nearest_name(name, known) if routine is None else routine.name


def array_names() -> tuple[str, ...]:
    """Return the names of arrays that processes store beside their results."""
    found = {
        output.name: None
        for routine in commands().values()
        for output in routine.outputs
        if output.kind != "value" and not output.first
    }
    return tuple(found)


for _routine in (
    *factorisations.ROUTINES,
    *systems.ROUTINES,
    *tall.ROUTINES,
    *products.ROUTINES,
):
    register(_routine)
