"""Pieces in which tiles pass through staging."""

from dataclasses import replace

from hdgemm.machine.rates import HOST
from hdgemm.options import Options
from hdgemm.pipeline.plan import DeviceSpec, OperandSpec, Problem, Slots
from hdgemm.pipeline.slots import pieces_of
from hdgemm.pipeline.tiles import Rect
from hdgemm.planning.planner import plan_for


def test_pieces_of_an_operand_that_moves_directly_are_finite():
    """The ring is sized for the staged operands; a direct one in a file has its own phase."""
    direct = OperandSpec(place="file", path="direct", chunk=(5, 16))
    problem = Problem(31, 7, 64, a=direct)
    plan = plan_for(problem, Options(host_memory="10MB"), DeviceSpec("x", unified=False), HOST)
    small = replace(plan, problem=problem, up=Slots(1, 64))
    found = pieces_of(small, "A", Rect(0, 0, 31, 64))
    assert sum(part.rows * part.cols for part in found) == 31 * 64
