"""Connection to the cluster that `--cluster` and the service's setting name."""

from __future__ import annotations

import re
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hdgemm.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def open_cluster(where: str) -> Iterator[Any]:
    """Yield a Dask client.

    Parameters
    ----------
    where
        The address of a scheduler, ``tcp://host:8786``; the file that a scheduler has written; or
        ``local:4``, which starts four workers on this machine and stops them at the end.

    Raises
    ------
    InputError
        When it is none of these, or no scheduler answers.
    """
    try:
        from distributed import Client, LocalCluster
    except ImportError as error:
        raise InputError(
            "--cluster needs distributed, which is not installed: pip install 'hdgemm[dask]'"
        ) from error
    with ExitStack() as stack:
        try:
            client = _client(where, stack, Client, LocalCluster)
        except (OSError, ValueError, TimeoutError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"--cluster {where}: no scheduler answers ({error})") from error
        yield client


def _client(where: str, stack: ExitStack, client: Any, local_cluster: Any) -> Any:
    if match := re.fullmatch(r"local:(\d+)", where):
        from hdgemm.machine.limits import cores

        count = int(match[1])
        if not 1 <= count <= 1024:
            raise InputError(f"--cluster {where}: give 1 to 1024 workers")
        cluster = stack.enter_context(
            local_cluster(
                n_workers=count, threads_per_worker=max(1, cores() // count), processes=True,
                dashboard_address="127.0.0.1:0",
            )
        )  # fmt: skip
        return stack.enter_context(client(cluster))
    if re.match(r"\w+://", where):
        return stack.enter_context(client(where, timeout="10s"))
    if not Path(where).is_file():
        raise InputError(
            f"--cluster {where}: give a scheduler's address (tcp://host:8786), the file that it "
            "has written, or local:4"
        )
    return stack.enter_context(client(scheduler_file=where, timeout="10s"))
