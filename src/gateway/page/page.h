/* What a browser shows at / of a router: index.html, as the build found it (cmake/page.cmake makes its bytes a C file). */
#ifndef COT_GATEWAY_PAGE_PAGE_H
#define COT_GATEWAY_PAGE_PAGE_H
#include <stddef.h>

extern const char cot_gateway_page[]; // not terminated
extern const size_t cot_gateway_page_bytes;

#endif
