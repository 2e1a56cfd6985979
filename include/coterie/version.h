/* Which Coterie this is. */
#ifndef COTERIE_VERSION_H
#define COTERIE_VERSION_H

#ifdef __cplusplus
extern "C" {
#endif

/* The library's version, "MAJOR.MINOR.PATCH", a constant string. Thread-safe. */
const char *cot_version(void);

#ifdef __cplusplus
}
#endif
#endif
