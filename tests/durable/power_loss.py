"""A disk that loses power: what was not made durable may be lost, in whole or in part."""

import errno
import os
import random
import threading
from pathlib import Path

from hdgemm.errors import HdgemmError

BLOCK = 4096
#: Calls that change the disk; each is a moment at which power may fail.
CALLS = ("pwrite", "pwritev", "fsync", "fdatasync", "replace", "ftruncate", "unlink")


class PowerLoss:
    """Fails at the n-th call that changes the disk, and remembers what was durable by then.

    From that call on every such call fails, as if the process were gone. `strike` then takes back
    what was never synced: of each file's blocks, of names, of renames, some and some not.
    """

    def __init__(self, folder, monkeypatch):
        self.folder = Path(folder).resolve()
        self._lock = threading.Lock()
        for name in CALLS:
            monkeypatch.setattr(os, name, self._watched(name, getattr(os, name)))
        self.on()

    def on(self):
        """Power returns; what is on the disk now is durable. It stays on."""
        self._left = None
        self.calls = 0
        self.names = {path.name for path in self.folder.iterdir()}
        self.durable = {path.stat().st_ino: path.read_bytes() for path in self.folder.iterdir()}
        self.renamed = []

    def fail_at(self, number):
        """Let the `number`-th call from now on fail, and all later ones."""
        self._left = number

    @property
    def failed(self):
        return self._left == 0

    def _watched(self, name, call):
        def watched(first, *rest, **more):
            with self._lock:
                if not self._concerns(first):
                    return call(first, *rest, **more)
                self._count(name)
                if name == "replace":
                    self._remember_rename(first, *rest)
                result = call(first, *rest, **more)
                if name in ("fsync", "fdatasync"):
                    self._synced(first)
                return result

        return watched

    def _concerns(self, target):
        path = Path(f"/proc/self/fd/{target}") if isinstance(target, int) else Path(target)
        path = path.resolve()
        return path == self.folder or path.parent == self.folder

    def _count(self, name):
        self.calls += 1
        if self._left is not None:
            if self._left <= 1:
                self._left = 0
                raise OSError(errno.EIO, f"power failed at {name}")
            self._left -= 1

    def _synced(self, fd):
        path = Path(f"/proc/self/fd/{fd}").resolve()
        if path == self.folder:
            self.names = {each.name for each in self.folder.iterdir()}
            self.renamed = []
        else:
            # By its descriptor: it may have no name.
            self.durable[os.fstat(fd).st_ino] = Path(f"/proc/self/fd/{fd}").read_bytes()

    def _remember_rename(self, source, target):
        target = Path(target)
        before = target.read_bytes() if target.exists() else None
        self.renamed.append((Path(source), target, before))

    def fails_during(self, run, call, seed):
        """Let power fail at a call of a run, which may only end in an error where it has failed."""
        self.fail_at(call)
        try:
            run()
        except (OSError, HdgemmError):
            assert self.failed
        self.strike(seed)

    def strike(self, seed):
        """Take back some of what was never durable; power is on afterwards."""
        rng = random.Random(seed)
        self._left = None
        for path in list(self.folder.iterdir()):
            self._mix(path, rng)
        for source, target, before in reversed(self.renamed):
            if target.exists() and rng.random() < 0.5:
                target.rename(source)
                if before is not None:
                    target.write_bytes(before)
        for path in list(self.folder.iterdir()):
            if path.name not in self.names and not self.renamed and rng.random() < 0.5:
                path.unlink()
        self.on()

    def _mix(self, path, rng):
        now, before = path.read_bytes(), self.durable.get(path.stat().st_ino, b"")
        if now == before:
            return
        # A file's length is lost with the writes that made it longer.
        size = rng.choice([len(now), len(before)])
        mixed = bytearray(now[:size].ljust(size, b"\0"))
        for start in range(0, size, BLOCK):
            if rng.random() < 0.5:
                old = before[start : start + BLOCK].ljust(BLOCK, b"\0")
                mixed[start : start + BLOCK] = old[: size - start]
        with path.open("r+b") as stream:
            stream.truncate(size)
            stream.write(mixed)
