/* Row gathers, and inverses of triangular blocks; ../programs.py prepends the definitions:
 *
 *   REAL   float or double
 *   CPLX   1 where an element is a (real, imaginary) pair of REALs, else 0
 *   ORDER  most rows of a triangular block
 *
 * Blocks lie in row-major tiles: `start` is the first element, `ld` the elements from row to row.
 */

#if CPLX
#define JOIN_(x, y) x##y
#define JOIN(x, y) JOIN_(x, y)
typedef JOIN(REAL, 2) ELEMENT;
#define ONE ((ELEMENT)(1, 0))
#define TIMES(x, y) ((ELEMENT)((x).s0 * (y).s0 - (x).s1 * (y).s1, (x).s0 * (y).s1 + (x).s1 * (y).s0))
/* Smith's algorithm: no overflow where the quotient has none. */
ELEMENT quotient(ELEMENT x, ELEMENT y)
{
    if (fabs(y.s0) >= fabs(y.s1)) {
        const REAL r = y.s1 / y.s0, d = y.s0 + y.s1 * r;
        return (ELEMENT)((x.s0 + x.s1 * r) / d, (x.s1 - x.s0 * r) / d);
    }
    const REAL r = y.s0 / y.s1, d = y.s0 * r + y.s1;
    return (ELEMENT)((x.s0 * r + x.s1) / d, (x.s1 * r - x.s0) / d);
}
#define OVER(x, y) quotient(x, y)
#else
typedef REAL ELEMENT;
#define ONE ((ELEMENT)1)
#define TIMES(x, y) ((x) * (y))
#define OVER(x, y) ((x) / (y))
#endif

/* Line i of the target becomes line lines[i] of the source; with `scatter` line lines[i] becomes
 * line i. Element j of line i is at start + i * line + j * step. */
__kernel void move(__global const int *restrict lines, const int scatter,
                   __global const ELEMENT *source, const long source_start,
                   const long source_line, const long source_step,
                   __global ELEMENT *target, const long target_start,
                   const long target_line, const long target_step)
{
    const long j = get_global_id(0), i = get_global_id(1);
    const long from = scatter ? i : lines[i], to = scatter ? lines[i] : i;
    target[target_start + to * target_line + j * target_step] =
        source[source_start + from * source_line + j * source_step];
}

/* Conjugates a block. */
__kernel void conjugate(__global REAL *a, const long start, const long ld)
{
    const long at = start + get_global_id(1) * ld + get_global_id(0);
    a[2 * at + 1] = -a[2 * at + 1];
}

/* Inverse of one triangular block of `order` rows into a row-major square of ORDER: a work-item
 * solves for one column, by substitution. */
__kernel void invert(const int order, const int lower, const int unit,
                     __global const ELEMENT *restrict a, const long start, const long ld,
                     __global ELEMENT *restrict inverse)
{
    const int col = get_global_id(0);
    ELEMENT x[ORDER];
    a += start;
    for (int step = 0; step < order; step++) {
        const int i = lower ? step : order - 1 - step;
        ELEMENT sum = i == col ? ONE : (ELEMENT)(0);
        if (lower ? i >= col : i <= col) {
            const int from = lower ? col : i + 1, to = lower ? i : col + 1;
            for (int k = from; k < to; k++) sum -= TIMES(a[i * ld + k], x[k]);
            if (!unit) sum = OVER(sum, a[i * ld + i]);
        }
        x[i] = sum;
        inverse[i * ORDER + col] = sum;
    }
}
