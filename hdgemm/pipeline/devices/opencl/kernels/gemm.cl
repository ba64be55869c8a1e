/* C := alpha * A * B + beta * C on op-space A (m x k), B (k x n) and row-major C (m x n).
 *
 * One source for every shape; ../programs.py prepends the definitions:
 *
 *   REAL             float or double
 *   CPLX             1 where an element is a (real, imaginary) pair of REALs, else 0
 *   LANES            of a vector, in REALs; vectors lie along n
 *   DIM_M DIM_N      the work-group's extents, in work-items
 *   ROWS VECTORS     a work-item's register tile: ROWS rows of VECTORS vectors
 *   WALK_M WALK_N    panels of A and B that a work-group processes in turn
 *   BLOCK_K          k of one unrolled block, and of one block in local memory
 *   CACHE_K          k after which C is updated, so that the panels in use stay in the cache
 *   LOCAL            1: the work-group copies blocks of A and B to local memory first
 *   PACKED           1: operands are in panels (see pack.cl), 0: row-major, with two strides each
 *   AHEAD            k steps by which panels are prefetched, 0 for none
 *
 * A work-group's tile of C is BLOCK_M x BLOCK_N elements, which is also the panels' width. A
 * work-item computes the rows DIM_M apart and the vectors DIM_N apart, as in BEAST (figure 6), so
 * that neighbours access neighbouring memory. A CPU's shape is DIM_M = DIM_N = 1: a work-item is
 * then a register tile that walks over WALK_M x WALK_N panels.
 *
 * Complex elements: with b = (re, im, re, im, ...), `acc` sums re(a) * b and `accj` sums im(a) * b;
 * a * b is acc + i * accj, where i * (x, y) = (-y, x) is needed only once, at the end.
 */

#define ES (1 + CPLX)
#define BLOCK_M (ROWS * DIM_M)
#define BLOCK_N (VECTORS * LANES * DIM_N / ES)
#define A_STEP (BLOCK_M * ES)
#define B_STEP (BLOCK_N * ES)

#define GLUE_(x, y) x##y
#define GLUE(x, y) GLUE_(x, y)
#if LANES == 1
typedef REAL VEC;
#define LOAD(p) (*(p))
#define STORE(v, p) (*(p) = (v))
#else
typedef GLUE(REAL, LANES) VEC;
#define LOAD(p) GLUE(vload, LANES)(0, p)
#define STORE(v, p) GLUE(vstore, LANES)(v, 0, p)
#endif

#if CPLX
#if LANES == 2
#define TURN(v) (VEC)(-(v).s1, (v).s0)
#elif LANES == 4
#define TURN(v) (VEC)(-(v).s1, (v).s0, -(v).s3, (v).s2)
#elif LANES == 8
#define TURN(v) \
    (VEC)(-(v).s1, (v).s0, -(v).s3, (v).s2, -(v).s5, (v).s4, -(v).s7, (v).s6)
#else
#define TURN(v)                                                                              \
    (VEC)(-(v).s1, (v).s0, -(v).s3, (v).s2, -(v).s5, (v).s4, -(v).s7, (v).s6, -(v).s9, (v).s8, \
          -(v).sb, (v).sa, -(v).sd, (v).sc, -(v).sf, (v).se)
#endif
#define SCALE(re, im, v) ((VEC)(re) * (v) + (VEC)(im) * TURN(v))
#else
#define SCALE(re, im, v) ((VEC)(re) * (v))
#endif

/* One k step: the outer product of a column of A and a row of B, added to the register tile. */
#define MULTIPLY(a, b)                                              \
    {                                                               \
        VEC row[VECTORS];                                           \
        _Pragma("unroll") for (int v = 0; v < VECTORS; v++)         \
            row[v] = LOAD((b) + (v * DIM_N + item_n) * LANES);      \
        _Pragma("unroll") for (int i = 0; i < ROWS; i++)            \
        {                                                           \
            const VEC re = (VEC)((a)[(i * DIM_M + item_m) * ES]);   \
            _Pragma("unroll") for (int v = 0; v < VECTORS; v++)     \
                acc[i][v] += re * row[v];                         \
            IMAGINARY(a)                                            \
        }                                                           \
    }
#if CPLX
#define IMAGINARY(a)                                                \
    const VEC im = (VEC)((a)[(i * DIM_M + item_m) * ES + 1]);       \
    _Pragma("unroll") for (int v = 0; v < VECTORS; v++)             \
        accj[i][v] += im * row[v];
#else
#define IMAGINARY(a)
#endif

#if PACKED
/* Panel p starts at p * stride; its k-th column (A) or row (B) is contiguous. */
#define A_AT(p, kk) (A + (p) * a_panel * ES + (kk) * A_STEP)
#define B_AT(p, kk) (B + (p) * b_panel * ES + (kk) * B_STEP)
#endif

#if LOCAL
#if PACKED
#define READ_A(t) (kk + (t) / A_STEP < until ? a[t] : (REAL)0)
#define READ_B(t) (kk + (t) / B_STEP < until ? b[t] : (REAL)0)
#else
/* Zeros beyond the edges, as texture reads return them: no cleanup code. */
#define READ_A(t)                                                                         \
    (kk + (t) / A_STEP < until && row0 + (t) % A_STEP / ES < m                             \
         ? A[((row0 + (t) % A_STEP / ES) * a_i + (kk + (t) / A_STEP) * a_k) * ES + (t) % ES] \
         : (REAL)0)
#define READ_B(t)                                                                         \
    (kk + (t) / B_STEP < until && col0 + (t) % B_STEP / ES < n                             \
         ? B[((kk + (t) / B_STEP) * b_k + (col0 + (t) % B_STEP / ES) * b_j) * ES + (t) % ES] \
         : (REAL)0)
#endif
#endif

__kernel __attribute__((reqd_work_group_size(DIM_N, DIM_M, 1)))
void gemm(const long m, const long n, const long k,
          const REAL alpha_re, const REAL alpha_im,
          __global const REAL *restrict A, const long a_start,
#if PACKED
          const long a_panel,
#else
          const long a_i, const long a_k,
#endif
          __global const REAL *restrict B, const long b_start,
#if PACKED
          const long b_panel,
#else
          const long b_k, const long b_j,
#endif
          const REAL beta_re, const REAL beta_im,
          __global REAL *restrict C, const long c_start, const long ldc)
{
    const int item_n = DIM_N == 1 ? 0 : get_local_id(0);
    const int item_m = DIM_M == 1 ? 0 : get_local_id(1);
    const long first_n = (long)get_group_id(0) * WALK_N;
    const long first_m = (long)get_group_id(1) * WALK_M;
    const long last_n = min(first_n + WALK_N, (n + BLOCK_N - 1) / BLOCK_N);
    const long last_m = min(first_m + WALK_M, (m + BLOCK_M - 1) / BLOCK_M);
    A += a_start * ES;
    B += b_start * ES;
    C += c_start * ES;
#if LOCAL
    __local REAL block_a[BLOCK_K * A_STEP];
    __local REAL block_b[BLOCK_K * B_STEP];
    const int item = item_m * DIM_N + item_n;
#endif

    long start = 0;
    do {
        const long until = min(k, start + CACHE_K);
        const REAL keep_re = start ? (REAL)1 : beta_re;
        const REAL keep_im = start ? (REAL)0 : beta_im;
        const int keep = keep_re != 0 || keep_im != 0;
        for (long pn = first_n; pn < last_n; pn++)
            for (long pm = first_m; pm < last_m; pm++) {
                const long row0 = pm * BLOCK_M, col0 = pn * BLOCK_N;
                long kk = start;
                VEC acc[ROWS][VECTORS];
                _Pragma("unroll") for (int i = 0; i < ROWS; i++)
                    _Pragma("unroll") for (int v = 0; v < VECTORS; v++) acc[i][v] = (VEC)(0);
#if CPLX
                VEC accj[ROWS][VECTORS];
                _Pragma("unroll") for (int i = 0; i < ROWS; i++)
                    _Pragma("unroll") for (int v = 0; v < VECTORS; v++) accj[i][v] = (VEC)(0);
#endif
#if PACKED
                __global const REAL *a = A_AT(pm, kk);
                __global const REAL *b = B_AT(pn, kk);
#endif
#if LOCAL
                for (; kk < until; kk += BLOCK_K) {
                    barrier(CLK_LOCAL_MEM_FENCE);
                    for (int t = item; t < BLOCK_K * A_STEP; t += DIM_M * DIM_N)
                        block_a[t] = READ_A(t);
                    for (int t = item; t < BLOCK_K * B_STEP; t += DIM_M * DIM_N)
                        block_b[t] = READ_B(t);
                    barrier(CLK_LOCAL_MEM_FENCE);
                    _Pragma("unroll") for (int s = 0; s < BLOCK_K; s++)
                        MULTIPLY(block_a + s * A_STEP, block_b + s * B_STEP)
#if PACKED
                    a += BLOCK_K * A_STEP;
                    b += BLOCK_K * B_STEP;
#endif
                }
#else
                for (; kk + BLOCK_K <= until; kk += BLOCK_K) {
                    _Pragma("unroll") for (int s = 0; s < BLOCK_K; s++) {
#if AHEAD
                        prefetch(b + (s + AHEAD) * B_STEP, B_STEP);
#endif
                        MULTIPLY(a + s * A_STEP, b + s * B_STEP)
                    }
                    a += BLOCK_K * A_STEP;
                    b += BLOCK_K * B_STEP;
                }
                for (; kk < until; kk++) {
                    MULTIPLY(a, b)
                    a += A_STEP;
                    b += B_STEP;
                }
#endif
#if CPLX
                _Pragma("unroll") for (int i = 0; i < ROWS; i++)
                    _Pragma("unroll") for (int v = 0; v < VECTORS; v++) acc[i][v] += TURN(accj[i][v]);
#endif
                __global REAL *c = C + (row0 * ldc + col0) * ES;
                if (row0 + BLOCK_M <= m && col0 + BLOCK_N <= n) {
                    _Pragma("unroll") for (int i = 0; i < ROWS; i++)
                        _Pragma("unroll") for (int v = 0; v < VECTORS; v++) {
                            __global REAL *at = c + (i * DIM_M + item_m) * ldc * ES
                                              + (v * DIM_N + item_n) * LANES;
                            VEC value = SCALE(alpha_re, alpha_im, acc[i][v]);
                            if (keep) {
                                const VEC old = LOAD(at);
                                value += SCALE(keep_re, keep_im, old);
                            }
                            STORE(value, at);
                        }
                } else {
                    REAL edge[ROWS * VECTORS * LANES];
                    _Pragma("unroll") for (int i = 0; i < ROWS; i++)
                        _Pragma("unroll") for (int v = 0; v < VECTORS; v++) {
                            const VEC value = SCALE(alpha_re, alpha_im, acc[i][v]);
                            STORE(value, edge + (i * VECTORS + v) * LANES);
                        }
                    for (int t = 0; t < ROWS * VECTORS * LANES; t += ES) {
                        const long i = row0 + t / (VECTORS * LANES) * DIM_M + item_m;
                        const long j = col0 + (t / LANES % VECTORS * DIM_N + item_n) * LANES / ES
                                       + t % LANES / ES;
                        if (i >= m || j >= n) continue;
                        __global REAL *at = C + (i * ldc + j) * ES;
#if CPLX
                        REAL re = edge[t], im = edge[t + 1];
                        if (keep) {
                            re += keep_re * at[0] - keep_im * at[1];
                            im += keep_re * at[1] + keep_im * at[0];
                        }
                        at[0] = re;
                        at[1] = im;
#else
                        at[0] = keep ? edge[t] + keep_re * at[0] : edge[t];
#endif
                    }
                }
            }
        start += CACHE_K;
    } while (start < k);
}
