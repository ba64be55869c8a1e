"""Updates on other devices than the host's BLAS: the product's pipeline, with devices kept open."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from hdgemm.blas import multiply
from hdgemm.hpl.system import host_update
from hdgemm.run.session import Session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hdgemm.hpl.system import Columns, Update
    from hdgemm.options import Options


@contextmanager
def update_on(options: Options) -> Iterator[Update]:
    """Yield the update C := C - A·B on the options' devices, which stay open meanwhile.

    Several devices share each product; the engine balances them (seed 004, section 3).
    """
    if options.devices in {"host", ("host",)}:
        yield host_update
        return
    with Session(options) as session:

        def update(a: Columns, b: Columns, c: Columns) -> None:
            multiply(a, b, c=c, alpha=-1.0, beta=1.0, out=c, session=session)

        yield update
