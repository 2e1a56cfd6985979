#include "route/line.h"

static const double KEEP = 1 - 1.0 / 128; // of what came before

void cot_route_line_add(cot_route_line *l, double x, double y)
{
    l->weight = l->weight * KEEP + 1;
    l->x = l->x * KEEP + x;
    l->y = l->y * KEEP + y;
    l->xx = l->xx * KEEP + x * x;
    l->xy = l->xy * KEEP + x * y;
}

/* Where the best line has a negative part that part is 0, and the other the best alone. */
bool cot_route_line_fit(const cot_route_line *l, double *at, double *slope)
{
    if (!(l->weight > 0)) return false;
    const double spread = l->weight * l->xx - l->x * l->x;
    *slope = spread > 1e-9 * l->weight * l->xx ? (l->weight * l->xy - l->x * l->y) / spread : -1;
    *at = (l->y - *slope * l->x) / l->weight;
    if (*slope < 0 && spread <= 1e-9 * l->weight * l->xx && l->xx > 0) { // all were alike
        *at = 0;
        *slope = l->xy / l->xx;
    } else if (*slope < 0) {
        *slope = 0;
        *at = l->y / l->weight;
    } else if (*at < 0) {
        *at = 0;
        *slope = l->xy / l->xx;
    }
    return true;
}
