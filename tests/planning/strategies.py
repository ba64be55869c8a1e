"""Hypothesis strategies: products, devices and options of every kind that the planner takes."""

from dataclasses import replace

from hypothesis import strategies as st

from hdgemm.options import STRATEGIES, Options
from hdgemm.pipeline.plan import DeviceSpec, OperandSpec, Problem

EXTENTS = st.sampled_from([1, 2, 3, 7, 13, 31, 64, 97, 211])
PATHS = st.sampled_from(["staged", "direct", "resident"])
SPECS = st.builds(
    OperandSpec,
    trans=st.booleans(),
    place=st.sampled_from(["memory", "file"]),
    path=PATHS,
    itemsize=st.sampled_from([4, 8]),
    chunk=st.none() | st.tuples(st.sampled_from([1, 5, 16]), st.sampled_from([4, 16, 300])),
    encoded=st.booleans(),
).map(lambda spec: spec if spec.chunk else replace(spec, encoded=False))
PROBLEMS = st.builds(
    Problem,
    m=EXTENTS,
    n=EXTENTS,
    k=EXTENTS,
    a=SPECS,
    b=SPECS,
    c=SPECS.map(lambda spec: replace(spec, trans=False)),
    reads_c=st.booleans(),
)
DEVICES = st.builds(
    DeviceSpec,
    unified=st.booleans(),
    memory_bytes=st.sampled_from([1 << 40, 200_000, 30_000]),
    max_buffer_bytes=st.sampled_from([1 << 40, 20_000]),
    granularity=st.sampled_from([(1, 1, 1), (1, 1, 1), (8, 24, 1), (16, 16, 4)]),
)
TILES = st.none() | st.tuples(*[st.integers(1, 5) | st.integers(20, 100)] * 3)
LIMITS = st.floats(3.5, 8).map(lambda exponent: int(10**exponent))
OPTIONS = st.builds(
    Options,
    strategy=st.sampled_from(STRATEGIES),
    tile=TILES,
    host_memory=LIMITS,
    verify=st.sampled_from([False, "tiles"]),
)


def with_few_steps(problem, options):
    """Return the options with a tile large enough for a quick test."""
    tile = options.tile
    if tile and problem.m * problem.n * problem.k > 3000 * tile[0] * tile[1] * tile[2]:
        tile = tuple(extent * 20 for extent in tile)
    return replace(options, tile=tile)
