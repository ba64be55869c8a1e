"""Plans of passes over the rows of tall matrices."""

from hdgemm.linalg.planning.rows import RowShape, plan_pass, triangle_work


def plan_tsqr(m, n, p, memory, cores, **given):
    shape = RowShape(m, n, p, "float64")
    return plan_pass(shape, [triangle_work(shape)], memory, cores, **given)
