#include "kernels/extents.h"

#ifdef COT_LOOKS_AT_EXTENTS
#include <sanitizer/asan_interface.h>

/* What is not there is read, which the sanitizer reports. */
static void look_at(const void *begin, int64_t bytes)
{
    const volatile char *missing = __asan_region_is_poisoned((void *)(uintptr_t)begin, (size_t)bytes);
    if (missing) (void)*missing;
}

void cot_gemm_look(const cot_gemm *g, int64_t m0, int64_t m1, int64_t p0, int64_t p1)
{
    const int64_t element = (int64_t)cot_dtype_bytes(g->type), panel = cot_panel_bytes(g->format, g->k),
                  columns = (p1 * COT_PANEL < g->n ? p1 * COT_PANEL : g->n) - p0 * COT_PANEL;
    if (columns <= 0) return;
    for (int64_t m = m0; m < m1; m++) {
        const int64_t row = g->a_rows ? g->a_rows[m] : m;
        look_at((const char *)g->a + row * g->a_stride * element, g->k * element);
        look_at(g->c + m * g->c_stride + p0 * COT_PANEL, columns * (int64_t)sizeof *g->c);
    }
    for (int64_t p = p0; p < p0 + cot_panels(columns); p++)
        look_at((const char *)g->b + cot_gemm_panel_at(g, p), panel);
}
#endif
