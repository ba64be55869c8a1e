"""The memory that a refused factorisation names: a plan fits in it, and not in 1 % less."""

import pytest

from hdgemm.errors import DoesNotFitError
from hdgemm.linalg import plan
from hdgemm.options import Options


def refused(routine: str, n: int | tuple[int, int], memory: int) -> int:
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


@pytest.mark.parametrize(
    ("routine", "shape"),
    [
        ("svdvals", (10**4, 10**4)),
        ("svd", (10**4, 10**4)),
        ("pinv", (10**4, 10**4)),
        ("ridge", (10**4, 10**4)),
        ("lstsq", (10**4, 2 * 10**4)),
        ("qr", (10**6, 10**6)),
        ("pca", (100, 10**9)),
    ],
)
def test_the_memory_named_has_room_for_all_parts(routine: str, shape: tuple[int, int]) -> None:
    """The memory named was the need of the part that was planned first."""
    named = refused(routine, shape, 40_000_000)
    plan(routine, shape, options=Options(host_memory=named))
    assert refused(routine, shape, named - named // 100) == named


def test_the_memory_named_for_qr_has_room_for_q() -> None:
    """With more memory the reflectors have wider blocks, which take more memory to form Q."""
    shape = 10**6, 100
    plan("qr", shape, options=Options(host_memory=refused("qr", shape, 40_000_000)))


def test_more_memory_than_options_take_is_named_too() -> None:
    assert refused("lstsq", (10**9, 10**9), 40_000_000) > 2**62
