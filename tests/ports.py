"""Ports for servers that tests start."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def reserved_port() -> Iterator[int]:
    """Yield a port of 127.0.0.1 that the system gives to no other program before the block ends.

    It is bound here and refuses connections; a server that sets ``SO_REUSEADDR``, as servers do,
    can listen on it.
    """
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]
