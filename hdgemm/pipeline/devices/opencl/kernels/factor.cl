/* Row gathers, inverses of triangular blocks, and factors of narrow panels; ../programs.py prepends
 * the definitions:
 *
 *   REAL     float or double
 *   CPLX     1 where an element is a (real, imaginary) pair of REALs, else 0
 *   ELEMENT  REAL, or a vector of two
 *   ORDER    most rows of a triangular block
 *   LANES    work-items of the work-group that factors a column: 1 on a CPU
 *   GROUP    work-items of all other work-groups; those beyond the last element do nothing
 *
 * Blocks lie in row-major tiles: `start` is the first element, `ld` the elements from row to row.
 */

#if CPLX
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
#define SIZE(x) (fabs((x).s0) + fabs((x).s1))
#define IS_ZERO(x) ((x).s0 == 0 && (x).s1 == 0)
#define REAL_PART(x) ((x).s0)
#define CONJUGATE(x) ((ELEMENT)((x).s0, -(x).s1))
#else
#define ONE ((ELEMENT)1)
#define TIMES(x, y) ((x) * (y))
#define OVER(x, y) ((x) / (y))
#define SIZE(x) fabs(x)
#define IS_ZERO(x) ((x) == 0)
#define REAL_PART(x) (x)
#define CONJUGATE(x) (x)
#endif

/* Line i of the target becomes line lines[i] of the source; with `scatter` line lines[i] becomes
 * line i. Element j of line i is at start + i * line + j * step. Neighbouring work-items move
 * neighbouring elements of memory: of a line, or with `by_lines` of neighbouring lines. */
__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void move(const long across, const long count, const int by_lines,
          __global const int *restrict lines, const int scatter,
          __global const ELEMENT *source, const long source_start,
          const long source_line, const long source_step,
          __global ELEMENT *target, const long target_start,
          const long target_line, const long target_step)
{
    const long i = get_global_id(1 - by_lines), j = get_global_id(by_lines);
    if (i >= count || j >= across) return;
    const long from = scatter ? i : lines[i], to = scatter ? lines[i] : i;
    target[target_start + to * target_line + j * target_step] =
        source[source_start + from * source_line + j * source_step];
}

/* Conjugates a block. */
__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void conjugate(const long cols, __global REAL *a, const long start, const long ld)
{
    if (get_global_id(0) >= cols) return;
    const long at = start + get_global_id(1) * ld + get_global_id(0);
    a[2 * at + 1] = -a[2 * at + 1];
}

/* Inverse of one triangular block of `order` rows into a row-major square of ORDER: a work-item
 * solves for one column, by substitution. */
__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void invert(const int order, const int lower, const int unit,
                     __global const ELEMENT *restrict a, const long start, const long ld,
                     __global ELEMENT *restrict inverse)
{
    const int col = get_global_id(0);
    ELEMENT x[ORDER];
    if (col >= order) return;
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

/* Column `col` of a dense panel of rows x width: find the pivot (IDAMAX) and interchange two rows
 * (DSWAP). pivots[width] is the 1-based index of the first pivot that is exactly zero, or 0. */
__kernel __attribute__((reqd_work_group_size(LANES, 1, 1)))
void pivot(const long rows, const int width, const int col,
           __global ELEMENT *a, __global int *pivots)
{
    const int item = get_local_id(0);
    __local REAL sizes[LANES];
    __local long places[LANES];
    REAL size = -1;
    long place = col;
    for (long i = col + item; i < rows; i += LANES) {
        const REAL found = SIZE(a[i * width + col]);
        if (found > size) {
            size = found;
            place = i;
        }
    }
    sizes[item] = size;
    places[item] = place;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int other = 0; other < LANES; other++)
        if (sizes[other] > size || (sizes[other] == size && places[other] < place)) {
            size = sizes[other];
            place = places[other];
        }
    if (item == 0) {
        const int first = col ? pivots[width] : 0;
        pivots[col] = place;
        pivots[width] = first == 0 && size == 0 ? col + 1 : first;
    }
    for (int j = item; j < width && place != col; j += LANES) {
        const ELEMENT held = a[col * width + j];
        a[col * width + j] = a[place * width + j];
        a[place * width + j] = held;
    }
}

/* Scale one row of L and update the rest of the row (DSCAL and DGER fused: the multiplier is used
 * while it is in a register). */
__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void eliminate(const long rows, const int width, const int col, __global ELEMENT *restrict a)
{
    __global const ELEMENT *top = a + col * width;
    const long i = col + 1 + get_global_id(0);
    if (i >= rows || IS_ZERO(top[col])) return;
    __global ELEMENT *row = a + i * width;
    const ELEMENT factor = OVER(row[col], top[col]);
    row[col] = factor;
    for (int j = col + 1; j < width; j++) row[j] -= TIMES(factor, top[j]);
}

/* Reflector of column `col` of a dense panel of rows x width (LARFG), and what it does to the
 * columns right of it: found[col] is tau; behind all tau are beta, the divisor of the column, and
 * for each column j conj(tau) v^H a_j, which one pass over the rows gives as products with the
 * column itself, scaled by its largest element. */
__kernel __attribute__((reqd_work_group_size(LANES, 1, 1)))
void reflector(const long rows, const int width, const int col,
               __global const ELEMENT *restrict a, __global ELEMENT *found)
{
    const int item = get_local_id(0);
    __local REAL sizes[LANES];
    __local ELEMENT sums[LANES];
    __global ELEMENT *rest = found + width;
    REAL size = 0;
    for (long i = col + item; i < rows; i += LANES) size = fmax(size, SIZE(a[i * width + col]));
    sizes[item] = size;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int other = 0; other < LANES; other++) size = fmax(size, sizes[other]);
    const ELEMENT alpha = a[col * width + col];
    REAL beta = 0;
    ELEMENT tau = (ELEMENT)(0), divisor = ONE;
    for (int j = col; j < width; j++) {
        ELEMENT sum = (ELEMENT)(0);
        for (long i = col + item; i < rows && size > 0; i += LANES)
            sum += TIMES(CONJUGATE(a[i * width + col] / size), a[i * width + j] / (j == col ? size : 1));
        barrier(CLK_LOCAL_MEM_FENCE);
        sums[item] = sum;
        barrier(CLK_LOCAL_MEM_FENCE);
        sum = (ELEMENT)(0);
        for (int other = 0; other < LANES; other++) sum += sums[other];
        if (j == col) {
            const REAL norm = size * sqrt(REAL_PART(sum));
            beta = REAL_PART(alpha) > 0 ? -norm : norm;
            if (size > 0) {
                tau = OVER(ONE * beta - alpha, ONE * beta);
                divisor = alpha - ONE * beta;
            }
            if (item == 0) {
                found[col] = tau;
                rest[0] = ONE * beta;
                rest[1] = divisor;
            }
        } else if (item == 0) {
            const ELEMENT top = a[col * width + j];
            /* (x - beta e)^H a_j / conj(alpha - beta), in units of the largest element */
            const ELEMENT product = size > 0
                ? OVER(sum - top * (beta / size), CONJUGATE(divisor / size)) : (ELEMENT)(0);
            rest[2 + j] = TIMES(CONJUGATE(tau), product);
        }
    }
}

/* Divide the column and subtract the reflector's part from the rows right of it. */
__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void reflect(const long rows, const int width, const int col,
             __global ELEMENT *restrict a, __global const ELEMENT *restrict found)
{
    __global const ELEMENT *rest = found + width;
    const long i = col + get_global_id(0);
    if (i >= rows) return;
    __global ELEMENT *row = a + i * width;
    const ELEMENT factor = i == col ? ONE : OVER(row[col], rest[1]);
    if (i == col && !IS_ZERO(found[col])) row[col] = rest[0];
    else if (i > col) row[col] = factor;
    for (int j = col + 1; j < width; j++) row[j] -= TIMES(factor, rest[2 + j]);
}

/* Cholesky factor of the lower triangle of a dense square; imaginary parts of the diagonal are
 * taken as zero. *order is the order of the first leading minor that is not positive, or 0. */
__kernel __attribute__((reqd_work_group_size(LANES, 1, 1)))
void cholesky(const int n, __global ELEMENT *a, __global int *order)
{
    const int item = get_local_id(0);
    int failed = 0;
    for (int j = 0; j < n && !failed; j++) {
        const REAL diagonal = REAL_PART(a[j * n + j]);
        barrier(CLK_GLOBAL_MEM_FENCE);
        if (!(diagonal > 0)) {
            failed = j + 1;
        } else {
            const REAL root = sqrt(diagonal);
            for (int i = j + item; i < n; i += LANES)
                a[i * n + j] = i == j ? ONE * root : a[i * n + j] / root;
        }
        barrier(CLK_GLOBAL_MEM_FENCE);
        if (!failed)
            for (int i = j + 1 + item; i < n; i += LANES)
                for (int k = j + 1; k <= i; k++)
                    a[i * n + k] -= TIMES(a[i * n + j], CONJUGATE(a[k * n + j]));
        barrier(CLK_GLOBAL_MEM_FENCE);
    }
    if (item == 0) *order = failed;
}
