/* A line through observations, y = at + slope x with neither below 0, of least squares; each new observation makes the older ones count
 * a little less. */
#ifndef COT_ROUTE_LINE_H
#define COT_ROUTE_LINE_H
#include <stdbool.h>

typedef struct cot_route_line {
    double weight, x, y, xx, xy; // sums
} cot_route_line;

void cot_route_line_add(cot_route_line *line, double x, double y);
/* False: nothing was seen. */
bool cot_route_line_fit(const cot_route_line *line, double *at, double *slope);

#endif
