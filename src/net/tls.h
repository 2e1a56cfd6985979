/* TLS 1.2 and 1.3 for servers, over OpenSSL: certificates and keys from files, and a link for each connection. */
#ifndef COT_NET_TLS_H
#define COT_NET_TLS_H
#include "coterie/status.h"
#include <stddef.h>
#include <sys/types.h>

typedef enum cot_tls_clients {
    COT_TLS_ANY_CLIENT,       // none is asked for a certificate
    COT_TLS_CHECKED_IF_GIVEN, // one that shows a certificate has a good one
    COT_TLS_CERTIFIED_ALONE   // all show a good one
} cot_tls_clients;

typedef struct cot_tls_options {
    const char *certificate; // a PEM file: the server's certificate, then those that lead to its root
    const char *key;         // a PEM file, not encrypted; NULL: in `certificate`
    const char *authorities; // a PEM file of certificates that clients' must come from; NULL: the system's
    cot_tls_clients clients;
} cot_tls_options;

typedef struct cot_tls cot_tls;
typedef struct cot_tls_link cot_tls_link;

/* Reads the files; options are copied. `*tls` is NULL on failure. Errors: IO (a file cannot be read), MALFORMED (it is not
 * what it should be), INVALID_ARGUMENT (the key is not the certificate's), OUT_OF_MEMORY. */
cot_status cot_tls_open(cot_tls **tls, const cot_tls_options *options, cot_error *error);
/* Reads the files again, for links from now on. On failure all stays as it was; errors as above. */
cot_status cot_tls_reload(cot_tls *tls, cot_error *error);
void cot_tls_close(cot_tls *tls); // links may live on; NULL is fine

/* A link over a socket that does not block, which stays the caller's; its handshake comes with what is read and written
 * first. NULL when out of memory. */
cot_tls_link *cot_tls_accept(cot_tls *tls, int socket);
enum { COT_TLS_END = 0, COT_TLS_WAIT_TO_READ = -1, COT_TLS_WAIT_TO_WRITE = -2 };
/* Bytes read or written (1 or more); END: the other side ended it, or it broke; or until when the socket has to be waited
 * for: that may be for the other direction, during a handshake. */
ssize_t cot_tls_read(cot_tls_link *link, void *at, size_t room);
ssize_t cot_tls_write(cot_tls_link *link, const void *bytes, size_t count);
/* Tells the other side that no more is written, if that can be told at once. */
void cot_tls_end(cot_tls_link *link);
void cot_tls_free(cot_tls_link *link); // NULL is fine

#endif
