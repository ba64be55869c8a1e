/* Copies a rectangle of a stored, row-major tile into panels.
 *
 * ELEMENT is a whole element (float, double, float2, double2), WIDTH the panels' width. A panel
 * holds WIDTH neighbours along m (of A) or n (of B) for each k: neighbour w of step k is at
 * p * panel + k * WIDTH + w in the target. The rectangle covers `across` neighbours from `first`
 * on. The rest of the last panel is not written: what the multiply kernel computes from it lies
 * outside C and is not stored.
 *
 * A work-group of LANES work-items packs CHUNK steps of one panel.
 */

#define ARGUMENTS                                                                            \
    const long steps, const long first, const long across,                                   \
        __global const ELEMENT *restrict source, const long start, const long ld,            \
        __global ELEMENT *restrict target, const long origin, const long panel

#if LANES > 1
#define PANEL(FROM)                                                                          \
    for (long t = begin * WIDTH + get_local_id(0); t < end * WIDTH; t += LANES) {            \
        const long k = t / WIDTH, w = t % WIDTH;                                             \
        if (w >= low && w < high) to[t] = FROM;                                              \
    }
#else
#define PANEL(FROM)                                                                          \
    if (low == 0 && high == WIDTH)                                                           \
        for (long k = begin; k < end; k++)                                                   \
            _Pragma("unroll") for (int w = 0; w < WIDTH; w++) to[k * WIDTH + w] = FROM;      \
    else                                                                                     \
        for (long k = begin; k < end; k++)                                                   \
            for (long w = low; w < high; w++) to[k * WIDTH + w] = FROM;
#endif

#define PLACE                                                                                \
    const long p = first / WIDTH + get_group_id(0);                                          \
    const long begin = (long)get_group_id(1) * CHUNK;                                        \
    const long end = min(begin + CHUNK, steps);                                              \
    const long low = max(first - p * WIDTH, 0L);                                             \
    const long high = min(first + across - p * WIDTH, (long)WIDTH);                          \
    __global ELEMENT *to = target + origin + p * panel;

/* Stored with k along the rows (A transposed, or B): a step is a contiguous piece. */
__kernel __attribute__((reqd_work_group_size(LANES, 1, 1))) void pack_rows(ARGUMENTS)
{
    PLACE
    __global const ELEMENT *from = source + start + (p * WIDTH - first);
    PANEL(from[k * ld + w])
}

/* Stored with k along the columns (A, or B transposed): WIDTH rows are interleaved. */
__kernel __attribute__((reqd_work_group_size(LANES, 1, 1))) void pack_columns(ARGUMENTS)
{
    PLACE
    __global const ELEMENT *from = source + start + (p * WIDTH - first) * ld;
    PANEL(from[w * ld + k])
}
