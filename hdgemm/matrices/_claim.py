"""Claims: objects that name the one run that writes an array of an object store.

An object store has no renames and no locks. A run creates the claim by a conditional put before it
writes its first chunk, and removes it after the metadata or, when it is discarded, after the
chunks. So only the run that is named in the claim writes or deletes chunks of an array that has no
metadata yet.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from hdgemm.errors import InputError

#: Name of the object beside the chunks.
CLAIM: Final = ".hdgemm-claim"


class _Found(NamedTuple):
    """Content of a claim, and the version that a conditional put replaces."""

    record: dict[str, Any]
    version: dict[str, Any]


class Claim:
    """The right of one run to write the chunks of one array.

    `inherited`: an earlier run had it, which was killed or whose journal this run goes on with.

    Parameters
    ----------
    objects
        The object store.
    key
        Name of the claim.
    place
        Location of the array, for messages.
    journal
        The journal that goes with the array, None without: the run that holds the journal inherits
        the claim.

    Raises
    ------
    InputError
        When another run has the claim, or the store has no conditional puts.
    """

    def __init__(self, objects: Any, key: str, place: str, journal: Path | None = None) -> None:
        self._objects, self._key, self._place = objects, key, place
        began = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"
        path = "" if journal is None else str(journal)
        self._record = {"run": secrets.token_hex(16), "journal": path, "began": began}
        self._record |= _this_process()
        self.inherited = False
        if self._put("create"):
            return
        found = self._read()
        if found is not None and not self._may_replace(found.record):
            raise self._taken(found.record)
        if not self._put("create" if found is None else found.version):
            again = self._read()
            raise self._taken(again.record if again is not None else {})
        self.inherited = found is not None

    def held(self) -> bool:
        """Return whether the store still names this run."""
        found = self._read()
        return found is not None and bool(found.record.get("run") == self._record["run"])

    def release(self) -> None:
        """Remove the claim, unless it names another run by now."""
        if self.held():
            self._objects.delete(self._key)

    def _put(self, mode: Any) -> bool:
        """Store the claim where the condition holds; return whether it did."""
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        try:
            self._objects.put(self._key, json.dumps(self._record).encode(), mode=mode)
        except (AlreadyExistsError, PreconditionError):
            # A request that was sent twice has met its own first copy.
            return self.held()
        except Exception as error:
            raise InputError(
                f"cannot create {self._place}: the object store must take conditional puts, which "
                f"keep two runs from writing one array: {str(error).partition(chr(10))[0]}",
                path=self._place,
            ) from error
        return True

    def _read(self) -> _Found | None:
        try:
            result = self._objects.get(self._key)
            content = result.bytes().to_bytes()
        except FileNotFoundError:
            return None
        except Exception as error:
            message = str(error).partition("\n")[0]
            raise InputError(
                f"cannot read the claim of {self._place}: {message}", path=self._place
            ) from error
        try:
            record = json.loads(content)
        except ValueError:
            record = None
        version = {name: result.meta.get(name) for name in ("e_tag", "version")}
        version = {name: value for name, value in version.items() if value is not None}
        return _Found(record if isinstance(record, dict) else {}, version)

    def _may_replace(self, record: dict[str, Any]) -> bool:
        if record.get("journal", ""):  # the run can be resumed
            return all(record.get(name) == self._record[name] for name in ("journal", "host"))
        return _has_ended(record)

    def _taken(self, record: dict[str, Any]) -> InputError:
        advice = (
            f"go on with its journal {record['journal']} there"
            if record.get("journal")
            else "wait for it"
        )
        return InputError(
            f"{self._place} is written by another run: process {record.get('process')} on "
            f"{record.get('host')}, begun {record.get('began')}. Choose another name, or {advice}; "
            f"if that run was killed for good, delete the array's objects, {self._key} among them",
            path=self._place,
        )


def _this_process() -> dict[str, Any]:
    return {
        "host": socket.gethostname(),
        "process": os.getpid(),
        "started": _start_of(os.getpid()),
        "machine": _machine(),
    }


def _machine() -> str | None:
    """Return the name of the running kernel and of the process namespace; None where unknown."""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    return None


def _start_of(process: int) -> str | None:
    """Return when a process began, in ticks of the kernel; None where that cannot be read."""
    with suppress(OSError, IndexError):
        status = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
        state, *fields = status.rpartition(")")[2].split()
        return "ended" if state in ("Z", "X") else fields[18]
    return None


def _has_ended(record: dict[str, Any]) -> bool:
    """Return whether the process of a claim ran on this machine and is known to be gone."""
    machine, process, started = (record.get(name) for name in ("machine", "process", "started"))
    here = machine is not None and bool(machine == _machine())
    if not here or started is None or type(process) is not int or process <= 0:
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except OSError:  # of another user
        return False
    return _start_of(process) not in (started, None)
