/* Status codes and the error detail that every fallible call of Coterie returns. */
#ifndef COTERIE_STATUS_H
#define COTERIE_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif

/* X(NAME, "what it means") */
#define COT_STATUS_LIST(X)                                                                                   \
    X(OK, "ok")                                                                                              \
    X(INVALID_ARGUMENT, "invalid argument")                                                                  \
    X(OUT_OF_MEMORY, "out of memory")                                                                        \
    X(IO, "input or output failed")                                                                          \
    X(NOT_FOUND, "not found")                                                                                \
    X(MALFORMED, "malformed data")                                                                           \
    X(UNSUPPORTED, "not supported")                                                                          \
    X(TOO_LONG, "beyond the context")                                                                        \
    X(TIMED_OUT, "timed out")                                                                                \
    X(PEER_FAILED, "another rank failed")                                                                    \
    X(SERVED, "this process was another rank, and has served to its end")

typedef enum cot_status {
#define COT_STATUS_ENUM(name, text) COT_##name,
    COT_STATUS_LIST(COT_STATUS_ENUM)
#undef COT_STATUS_ENUM
} cot_status;

/* What went wrong, in one line: lowercase, no full stop, the subject in quotes. Owned by the caller; every
 * function that takes a `cot_error *` accepts NULL. Untouched on success. */
typedef struct cot_error {
    cot_status status;
    char message[256];
} cot_error;

/* The status's text, a constant string; "unknown status" for a value that is none. Thread-safe. */
const char *cot_status_text(cot_status status);

#ifdef __cplusplus
}
#endif
#endif
