/* What a browser shows at /: index.html, as the build found it (cmake/page.cmake makes its bytes a C file). */
#ifndef COT_SERVER_PAGE_PAGE_H
#define COT_SERVER_PAGE_PAGE_H
#include <stddef.h>

extern const char cot_served_page[]; // not terminated
extern const size_t cot_served_page_bytes;

#endif
