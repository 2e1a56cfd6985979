/* Who may call a server or a gateway, where it listens, and what is written of each request. */
#ifndef COTERIE_ACCESS_H
#define COTERIE_ACCESS_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum cot_log_level { COT_LOG_ERROR, COT_LOG_WARNING, COT_LOG_INFO } cot_log_level;

/* Fill with cot_access_options_init, which sets the defaults, then change what differs. */
typedef struct cot_access_options {
    /* Address to listen on. Any but a loopback one needs `api_keys` or `no_auth`. Default "127.0.0.1". */
    const char *host;
    int port; /* 0: any that is free. Default 8000 */
    /* Keys of which a request must bear one ("Authorization: Bearer KEY"); NULL ends. Default NULL: none is asked for. */
    const char *const *api_keys;
    bool no_auth; /* listens anywhere without keys; default false */
    /* Without keys, on a loopback address: names by which clients may call this host beside localhost, 127.0.0.1 and
     * [::1] (a page on the web may have its name point here); NULL ends. Default NULL. */
    const char *const *allowed_hosts;
    /* Origins whose pages may call (CORS), "*" for all; NULL ends. Default NULL: none. */
    const char *const *allowed_origins;
    /* 1 to 65536, default 4096. Beyond them, the connection that has waited longest for its client goes. */
    int64_t max_connections;
    /* Certificate and key, PEM files: where there is a certificate, TLS 1.2 and 1.3 are spoken, and nothing else.
     * ssl_keyfile NULL: the key is in ssl_certfile. ssl_cert_reqs 1: clients that show a certificate have one from
     * ssl_ca_certs (NULL: the system's); 2: all show one. Default NULL, NULL, NULL, 0. */
    const char *ssl_certfile, *ssl_keyfile, *ssl_ca_certs;
    int ssl_cert_reqs;
    /* A file to which a line of JSON is appended for each request, "-" for standard output. Default NULL: none. */
    const char *access_log;
    /* The least urgent lines that are written, for the operator and of requests (answers from 500 on are errors, from 400 on
     * and those that were cut warnings). Default COT_LOG_INFO. */
    cot_log_level log_level;
    /* Gets a line for the operator, on the loop's thread. NULL, the default: nobody does. */
    void (*log)(void *context, const char *line);
    void *log_context;
} cot_access_options;
void cot_access_options_init(cot_access_options *options);

#ifdef __cplusplus
}
#endif
#endif
