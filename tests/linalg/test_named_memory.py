"""The memory that a refused factorisation names: a plan fits in it, and not in 1 % less."""

import pytest

from hdgemm.errors import DoesNotFitError
from hdgemm.linalg import plan
from hdgemm.options import Options


def refused(routine: str, n: int, memory: int) -> int:
    """Return the bytes that a plan within `memory` asks for."""
    with pytest.raises(DoesNotFitError) as error:
        plan(routine, n, options=Options(host_memory=memory))
    return int(error.value.requested)


@pytest.mark.parametrize("routine", ["lu", "cholesky", "solve"])
@pytest.mark.parametrize("n", [10**6, 10**7, 10**9])
def test_the_memory_named_by_a_refusal_is_the_least_that_works(routine: str, n: int) -> None:
    named = refused(routine, n, 40_000_000)
    plan(routine, n, options=Options(host_memory=named))
    assert refused(routine, n, named - named // 100) == named
