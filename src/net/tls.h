/* TLS 1.2 and 1.3 over OpenSSL, for servers and who calls them: certificates and keys from files, and a link for each connection. */
#ifndef COT_NET_TLS_H
#define COT_NET_TLS_H
#include "coterie/status.h"
#include <stdbool.h>
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
/* For who calls servers, whose certificates must come from those of a PEM file; NULL: from the system's. Errors: IO, MALFORMED,
 * OUT_OF_MEMORY. */
cot_status cot_tls_open_client(cot_tls **tls, const char *authorities, cot_error *error);
/* Of a server: reads the files again, for links from now on. On failure all stays as it was; errors as above. */
cot_status cot_tls_reload(cot_tls *tls, cot_error *error);
void cot_tls_close(cot_tls *tls); // links may live on; NULL is fine

/* A link over a socket that does not block, which stays the caller's; its handshake comes with what is read and written
 * first. NULL when out of memory. */
cot_tls_link *cot_tls_accept(cot_tls *tls, int socket);
/* The same to a server whose certificate must be this host's: a name, or an address without brackets. */
cot_tls_link *cot_tls_connect(cot_tls *tls, int socket, const char *host);
enum { COT_TLS_END = 0, COT_TLS_WAIT_TO_READ = -1, COT_TLS_WAIT_TO_WRITE = -2 };
/* Bytes read or written (1 or more); END: the other side ended it, or it broke; or until when the socket has to be waited
 * for: that may be for the other direction, during a handshake. */
ssize_t cot_tls_read(cot_tls_link *link, void *at, size_t room);
ssize_t cot_tls_write(cot_tls_link *link, const void *bytes, size_t count);
/* After END: whether the other side said that it had no more; else what was read may be a part. */
bool cot_tls_ended_well(const cot_tls_link *link);
/* After END: why a server's certificate was refused; NULL: it was not. */
const char *cot_tls_refusal(const cot_tls_link *link);
/* Whether the handshake is over. */
bool cot_tls_is_linked(const cot_tls_link *link);
/* Tells the other side that no more is written, if that can be told at once. */
void cot_tls_end(cot_tls_link *link);
void cot_tls_free(cot_tls_link *link); // NULL is fine

#endif
