/* Brings a rectangle of a stored, row-major tile into panels.
 *
 * ELEMENT is a whole element (float, double, float2, double2), WIDTH the panels' width. A panel
 * holds WIDTH neighbours along m (of A) or n (of B) for each k: neighbour w of step k lies at
 * panel * (extent * WIDTH) + k * WIDTH + w, extent being the tile's k. A panel that the tile does
 * not fill is filled with zeros.
 *
 * One work-item packs one panel's `CHUNK` k steps.
 */

/* Stored with k along the rows (A of op 'T', B of op 'N'): a step is a contiguous piece. */
__kernel void pack_rows(const long steps, const long across,
                        __global const ELEMENT *restrict source, const long start, const long ld,
                        __global ELEMENT *restrict target, const long origin, const long panel)
{
    const long p = get_global_id(0);
    const long first = (long)get_global_id(1) * CHUNK;
    const long last = min(first + CHUNK, steps);
    const long filled = min(across - p * WIDTH, (long)WIDTH);
    __global const ELEMENT *from = source + start + p * WIDTH;
    __global ELEMENT *to = target + origin + p * panel;
    if (filled == WIDTH)
        for (long k = first; k < last; k++)
            _Pragma("unroll") for (int w = 0; w < WIDTH; w++) to[k * WIDTH + w] = from[k * ld + w];
    else
        for (long k = first; k < last; k++)
            for (int w = 0; w < WIDTH; w++)
                to[k * WIDTH + w] = w < filled ? from[k * ld + w] : (ELEMENT)(0);
}

/* Stored with k along the columns (A of op 'N', B of op 'T'): WIDTH rows are interleaved. */
__kernel void pack_columns(const long steps, const long across,
                           __global const ELEMENT *restrict source, const long start, const long ld,
                           __global ELEMENT *restrict target, const long origin, const long panel)
{
    const long p = get_global_id(0);
    const long first = (long)get_global_id(1) * CHUNK;
    const long last = min(first + CHUNK, steps);
    const long filled = min(across - p * WIDTH, (long)WIDTH);
    __global const ELEMENT *from = source + start + p * WIDTH * ld;
    __global ELEMENT *to = target + origin + p * panel;
    if (filled == WIDTH)
        for (long k = first; k < last; k++)
            _Pragma("unroll") for (int w = 0; w < WIDTH; w++) to[k * WIDTH + w] = from[w * ld + k];
    else
        for (long k = first; k < last; k++)
            for (int w = 0; w < WIDTH; w++)
                to[k * WIDTH + w] = w < filled ? from[w * ld + k] : (ELEMENT)(0);
}
