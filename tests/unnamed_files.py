"""File systems that create no file without a name."""

import errno
import os


def without_unnamed_files(monkeypatch):
    """Let no file be created without a name, as on file systems that do not offer it."""

    def refuse(path, flags, *rest, **named):
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        return opened(path, flags, *rest, **named)

    opened = os.open
    monkeypatch.setattr(os, "open", refuse)
