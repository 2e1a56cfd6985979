#include "net/tls.h"

#include "base/error.h"

#include <errno.h>
#include <limits.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>

struct cot_tls {
    SSL_CTX *context; // links hold it, too
    BIO_METHOD *method;
    char *certificate, *key, *authorities;
    cot_tls_clients clients;
};

/* ---- bytes between OpenSSL and a socket ---- */

/* As OpenSSL's own socket would, but that a client that has left raises no SIGPIPE in whoever serves. */
static int write_socket(BIO *bio, const char *bytes, size_t count, size_t *written)
{
    BIO_clear_retry_flags(bio);
    const ssize_t n = send((int)(intptr_t)BIO_get_data(bio), bytes, count, MSG_NOSIGNAL);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) BIO_set_retry_write(bio);
    *written = n > 0 ? (size_t)n : 0;
    return n > 0;
}

static int read_socket(BIO *bio, char *bytes, size_t room, size_t *got)
{
    BIO_clear_retry_flags(bio);
    const ssize_t n = recv((int)(intptr_t)BIO_get_data(bio), bytes, room, 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) BIO_set_retry_read(bio);
    *got = n > 0 ? (size_t)n : 0;
    return n > 0;
}

static long control_socket(BIO *bio, int command, long number, void *pointer)
{
    (void)bio;
    (void)number;
    (void)pointer;
    return command == BIO_CTRL_FLUSH;
}

static BIO_METHOD *new_method(void)
{
    BIO_METHOD *method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "socket without signals");
    if (method && BIO_meth_set_write_ex(method, write_socket) && BIO_meth_set_read_ex(method, read_socket) &&
        BIO_meth_set_ctrl(method, control_socket))
        return method;
    BIO_meth_free(method);
    return NULL;
}

/* ---- files ---- */

/* What OpenSSL says of the last failure; a file that is not there is told apart from one that is no PEM. */
static cot_status fail_of_file(const char *what, const char *path, cot_error *error)
{
    const unsigned long code = ERR_peek_last_error(), first = ERR_peek_error();
    const bool is_system = ERR_SYSTEM_ERROR(first) || ERR_GET_LIB(first) == ERR_LIB_SYS;
    const char *why =
        ERR_SYSTEM_ERROR(first) ? strerror(ERR_GET_REASON(first)) : ERR_reason_error_string(code);
    const cot_status status = is_system ? COT_IO : COT_MALFORMED;
    ERR_clear_error();
    return cot_fail(error, status, "cannot read the %s '%s': %s", what, path,
                    why ? why : "it is not a PEM file");
}

/* A key that is encrypted is refused, where OpenSSL would ask the terminal. */
static int no_password(char *to, int room, int writes, void *context)
{
    (void)to;
    (void)room;
    (void)writes;
    (void)context;
    return 0;
}

static int choose_protocol(SSL *ssl, const unsigned char **chosen, unsigned char *bytes,
                           const unsigned char *offered, unsigned int count, void *context)
{
    static const unsigned char http[] = "\x08http/1.1";
    (void)ssl;
    (void)context;
    return SSL_select_next_proto((unsigned char **)chosen, bytes, http, sizeof http - 1, offered, count) ==
                   OPENSSL_NPN_NEGOTIATED
               ? SSL_TLSEXT_ERR_OK
               : SSL_TLSEXT_ERR_NOACK;
}

/* What servers and who calls them have in common. */
static bool set_protocols(SSL_CTX *c)
{
    SSL_CTX_set_options(c, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION | SSL_OP_CIPHER_SERVER_PREFERENCE |
                               SSL_OP_NO_TICKET);
    SSL_CTX_set_mode(c, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                            SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_session_cache_mode(c, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_num_tickets(c, 0);
    SSL_CTX_set_default_passwd_cb(c, no_password);
    return SSL_CTX_set_min_proto_version(c, TLS1_2_VERSION) &&
           SSL_CTX_set_cipher_list(c, "ECDHE+AESGCM:ECDHE+CHACHA20");
}

static cot_status set_authorities(SSL_CTX *c, const cot_tls *tls, cot_error *error)
{
    static const int modes[] = {SSL_VERIFY_NONE, SSL_VERIFY_PEER,
                                SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT};
    SSL_CTX_set_verify(c, modes[tls->clients], NULL);
    if (tls->clients == COT_TLS_ANY_CLIENT) return COT_OK;
    if (!tls->authorities)
        return SSL_CTX_set_default_verify_paths(c)
                   ? COT_OK
                   : cot_fail(error, COT_IO, "cannot read the system's certificates");
    if (!SSL_CTX_load_verify_file(c, tls->authorities))
        return fail_of_file("certificates of authorities", tls->authorities, error);
    SSL_CTX_set_client_CA_list(c,
                               SSL_load_client_CA_file(tls->authorities)); // NULL is none, which is allowed
    return COT_OK;
}

/* What is no file is not waited for, as a named pipe would be. */
static cot_status check_file(const char *what, const char *path, cot_error *error)
{
    struct stat about;
    if (!path || stat(path, &about) != 0 || S_ISREG(about.st_mode))
        return COT_OK; // OpenSSL tells what is not there
    return cot_fail(error, COT_IO, "cannot read the %s '%s': not a regular file", what, path);
}

static cot_status make_context(SSL_CTX **out, const cot_tls *tls, cot_error *error)
{
    const char *key = tls->key ? tls->key : tls->certificate;
    SSL_CTX *c = *out = SSL_CTX_new(TLS_server_method());
    ERR_clear_error();
    cot_status status =
        c && set_protocols(c) ? COT_OK : cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for TLS");
    if (c) SSL_CTX_set_alpn_select_cb(c, choose_protocol, NULL);
    if (status == COT_OK) status = check_file("certificate", tls->certificate, error);
    if (status == COT_OK) status = check_file("key", tls->key, error);
    if (status == COT_OK) status = check_file("certificates of authorities", tls->authorities, error);
    if (status == COT_OK && SSL_CTX_use_certificate_chain_file(c, tls->certificate) != 1)
        status = fail_of_file("certificate", tls->certificate, error);
    if (status == COT_OK && SSL_CTX_use_PrivateKey_file(c, key, SSL_FILETYPE_PEM) != 1) {
        const int why = ERR_GET_REASON(ERR_peek_last_error());
        status =
            why == X509_R_KEY_VALUES_MISMATCH || why == X509_R_KEY_TYPE_MISMATCH
                ? cot_fail(error, COT_INVALID_ARGUMENT,
                           "the key in '%s' is not that of the certificate in '%s'", key, tls->certificate)
                : fail_of_file("key", key, error);
    }
    if (status == COT_OK) status = set_authorities(c, tls, error);
    ERR_clear_error();
    if (status == COT_OK) return COT_OK;
    SSL_CTX_free(c);
    *out = NULL;
    return status;
}

static bool copy(char **to, const char *text)
{
    *to = text ? strdup(text) : NULL;
    return *to || !text;
}

cot_status cot_tls_open(cot_tls **out, const cot_tls_options *o, cot_error *error)
{
    cot_tls *tls = *out = calloc(1, sizeof *tls);
    const bool good = tls && copy(&tls->certificate, o->certificate) && copy(&tls->key, o->key) &&
                      copy(&tls->authorities, o->authorities) && (tls->method = new_method());
    cot_status status = good ? COT_OK : cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for TLS");
    if (status == COT_OK) {
        tls->clients = o->clients;
        status = make_context(&tls->context, tls, error);
    }
    if (status == COT_OK) return COT_OK;
    cot_tls_close(tls);
    *out = NULL;
    return status;
}

static cot_status make_client_context(SSL_CTX **out, const char *authorities, cot_error *error)
{
    static const unsigned char http[] = "\x08http/1.1";
    SSL_CTX *c = *out = SSL_CTX_new(TLS_client_method());
    ERR_clear_error();
    if (!c || !set_protocols(c) || SSL_CTX_set_alpn_protos(c, http, sizeof http - 1) != 0)
        return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for TLS");
    SSL_CTX_set_verify(c, SSL_VERIFY_PEER, NULL);
    if (!authorities)
        return SSL_CTX_set_default_verify_paths(c)
                   ? COT_OK
                   : cot_fail(error, COT_IO, "cannot read the system's certificates");
    const cot_status status = check_file("certificates of authorities", authorities, error);
    if (status != COT_OK || SSL_CTX_load_verify_file(c, authorities)) return status;
    return fail_of_file("certificates of authorities", authorities, error);
}

cot_status cot_tls_open_client(cot_tls **out, const char *authorities, cot_error *error)
{
    cot_tls *tls = *out = calloc(1, sizeof *tls);
    cot_status status = tls && (tls->method = new_method())
                            ? COT_OK
                            : cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for TLS");
    if (status == COT_OK) status = make_client_context(&tls->context, authorities, error);
    ERR_clear_error();
    if (status == COT_OK) return COT_OK;
    cot_tls_close(tls);
    *out = NULL;
    return status;
}

cot_status cot_tls_reload(cot_tls *tls, cot_error *error)
{
    SSL_CTX *fresh;
    const cot_status status = make_context(&fresh, tls, error);
    if (status != COT_OK) return status;
    SSL_CTX_free(tls->context);
    tls->context = fresh;
    return COT_OK;
}

void cot_tls_close(cot_tls *tls)
{
    if (!tls) return;
    SSL_CTX_free(tls->context);
    BIO_meth_free(tls->method);
    free(tls->certificate);
    free(tls->key);
    free(tls->authorities);
    free(tls);
}

/* ---- links ---- */

static SSL *open_link(cot_tls *tls, int socket)
{
    SSL *ssl = SSL_new(tls->context);
    BIO *bio = BIO_new(tls->method);
    if (!ssl || !bio) {
        SSL_free(ssl);
        BIO_free(bio);
        return NULL;
    }
    BIO_set_data(bio, (void *)(intptr_t)socket);
    BIO_set_init(bio, 1);
    SSL_set_bio(ssl, bio, bio);
    return ssl;
}

cot_tls_link *cot_tls_accept(cot_tls *tls, int socket)
{
    SSL *ssl = open_link(tls, socket);
    if (ssl) SSL_set_accept_state(ssl);
    return (cot_tls_link *)ssl;
}

cot_tls_link *cot_tls_connect(cot_tls *tls, int socket, const char *host)
{
    SSL *ssl = open_link(tls, socket);
    if (!ssl) return NULL;
    SSL_set_connect_state(ssl);
    // an address is none of the names that are sent
    if (X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), host) ||
        (SSL_set1_host(ssl, host) && SSL_set_tlsext_host_name(ssl, host)))
        return (cot_tls_link *)ssl;
    SSL_free(ssl);
    return NULL;
}

bool cot_tls_ended_well(const cot_tls_link *link)
{
    return SSL_get_shutdown((const SSL *)link) & SSL_RECEIVED_SHUTDOWN;
}

const char *cot_tls_refusal(const cot_tls_link *link)
{
    const long why = SSL_get_verify_result((const SSL *)link);
    return why == X509_V_OK ? NULL : X509_verify_cert_error_string(why);
}

bool cot_tls_is_linked(const cot_tls_link *link)
{
    return SSL_is_init_finished((const SSL *)link);
}

static ssize_t outcome(SSL *ssl, int good, size_t count)
{
    if (good) return (ssize_t)count;
    const int why = SSL_get_error(ssl, good);
    ERR_clear_error();
    return why == SSL_ERROR_WANT_READ    ? COT_TLS_WAIT_TO_READ
           : why == SSL_ERROR_WANT_WRITE ? COT_TLS_WAIT_TO_WRITE
                                         : COT_TLS_END;
}

ssize_t cot_tls_read(cot_tls_link *link, void *at, size_t room)
{
    SSL *ssl = (SSL *)link;
    size_t count = 0;
    ERR_clear_error();
    const int good = SSL_read_ex(ssl, at, room, &count);
    return outcome(ssl, good, count);
}

ssize_t cot_tls_write(cot_tls_link *link, const void *bytes, size_t most)
{
    SSL *ssl = (SSL *)link;
    size_t count = 0;
    ERR_clear_error();
    const int good = SSL_write_ex(ssl, bytes, most, &count);
    return outcome(ssl, good, count);
}

void cot_tls_end(cot_tls_link *link)
{
    SSL *ssl = (SSL *)link;
    ERR_clear_error();
    if (SSL_is_init_finished(ssl)) SSL_shutdown(ssl);
    ERR_clear_error();
}

void cot_tls_free(cot_tls_link *link)
{
    SSL_free((SSL *)link);
}
