#include "gateway/discover.h"

#include "base/buffer.h"
#include "base/error.h"
#include "gateway/gateway_state.h"

#include <netdb.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

enum { EVERY_S = 30, MOST_ADDRESSES = 512 };

/* What the thread that looks up and the loop share; the last of the two frees it. */
typedef struct lookup {
    pthread_mutex_t lock;
    pthread_cond_t now; // look up, or end
    bool is_left, asks; // the loop has left; wants an answer now
    char *name;
    cot_wake wake;
    /* The last answer, until the loop takes it. */
    bool has_answer;
    int failure;          // of getaddrinfo
    cot_buffer addresses; // each with a NUL behind it
} lookup;

struct cot_discovery {
    cot_gateway *gateway;
    lookup *lookup;
    char port[8];
    bool failed; // that was told
};

/* ---- the thread ---- */

static void free_lookup(lookup *l)
{
    pthread_mutex_destroy(&l->lock);
    pthread_cond_destroy(&l->now);
    cot_buffer_free(&l->addresses);
    free(l->name);
    free(l);
}

/* The addresses of a name; what getaddrinfo says. */
static int look_up(cot_buffer *out, const char *name)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    int failure = getaddrinfo(name, NULL, &hints, &found), count = 0;
    for (const struct addrinfo *at = found; at && !failure && count < MOST_ADDRESSES; at = at->ai_next) {
        char text[NI_MAXHOST];
        failure = getnameinfo(at->ai_addr, at->ai_addrlen, text, sizeof text, NULL, 0, NI_NUMERICHOST);
        if (!failure && !cot_buffer_append(out, text, strlen(text) + 1)) failure = EAI_MEMORY;
        count++;
    }
    if (found) freeaddrinfo(found);
    return failure;
}

static void *run(void *argument)
{
    lookup *const l = argument;
    pthread_mutex_lock(&l->lock);
    while (!l->is_left) {
        cot_buffer addresses = {0};
        struct timespec until;
        l->asks = false;
        pthread_mutex_unlock(&l->lock);
        const int failure = look_up(&addresses, l->name);
        pthread_mutex_lock(&l->lock);
        cot_buffer_free(&l->addresses);
        l->addresses = addresses;
        l->failure = failure;
        l->has_answer = true;
        if (!l->is_left) cot_wake_up(&l->wake);
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_sec += EVERY_S;
        while (!l->is_left && !l->asks && !pthread_cond_timedwait(&l->now, &l->lock, &until)) {}
    }
    pthread_mutex_unlock(&l->lock);
    free_lookup(l);
    return NULL;
}

/* ---- the loop ---- */

/* Whether a worker stands at one of the addresses. */
static bool is_among(const cot_gateway_worker *w, const cot_buffer *addresses, const char *port)
{
    char url[NI_MAXHOST + 24];
    for (const char *at = addresses->data; at && at < addresses->data + addresses->bytes;
         at += strlen(at) + 1) {
        snprintf(url, sizeof url, strchr(at, ':') ? "http://[%s]:%s" : "http://%s:%s", at, port);
        if (!strcmp(w->entry.url, url)) return true;
    }
    return false;
}

static void add(cot_discovery *d, const char *address)
{
    cot_gateway *const g = d->gateway;
    char url[NI_MAXHOST + 24];
    cot_fleet_entry entry;
    cot_error error;
    snprintf(url, sizeof url, strchr(address, ':') ? "http://[%s]:%s" : "http://%s:%s", address, d->port);
    cot_status status = cot_fleet_entry_of_url(&entry, url, &error);
    if (status == COT_OK && cot_gateway_find_worker(g, entry.name)) {
        cot_fleet_entry_free(&entry);
        return;
    }
    if (status == COT_OK) status = cot_gateway_add_worker(g, &entry, false, &error);
    if (status != COT_OK) {
        cot_access_tell(&g->access, COT_LOG_ERROR, "'%s' of 'dns:%s:%s' is left out: %s", address,
                        d->lookup->name, d->port, error.message);
        return;
    }
    cot_gateway_find_worker(g, url + cot_fleet_scheme(url))->discovery = d;
}

static void apply(cot_discovery *d, const cot_buffer *addresses)
{
    for (cot_gateway_worker *w = d->gateway->workers; w; w = w->next)
        if (w->discovery == d && w->listed && !is_among(w, addresses, d->port)) {
            cot_access_tell(&d->gateway->access, COT_LOG_INFO, "worker '%s' is no address of '%s' any more",
                            w->entry.name, d->lookup->name);
            cot_gateway_remove_worker(w);
        }
    for (const char *at = addresses->data; at && at < addresses->data + addresses->bytes;
         at += strlen(at) + 1)
        add(d, at);
}

static void hear(void *context, uint64_t times)
{
    cot_discovery *const d = context;
    lookup *const l = d->lookup;
    (void)times;
    pthread_mutex_lock(&l->lock);
    cot_buffer addresses = l->addresses;
    const bool has_answer = l->has_answer;
    const int failure = l->failure;
    l->addresses = (cot_buffer){0};
    l->has_answer = false;
    pthread_mutex_unlock(&l->lock);
    if (has_answer && !failure) {
        apply(d, &addresses);
    } else if (has_answer && !d->failed)
        cot_access_tell(&d->gateway->access, COT_LOG_WARNING,
                        "cannot look up '%s', its workers stay as they were: %s", l->name,
                        gai_strerror(failure));
    if (has_answer) d->failed = failure;
    cot_buffer_free(&addresses);
}

/* ---- beginning and end ---- */

static const char scheme[] = "dns:";

bool cot_discovery_is(const char *text)
{
    return !strncmp(text, scheme, sizeof scheme - 1);
}

static bool start(lookup *l)
{
    pthread_t thread;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    const bool good = !pthread_create(&thread, &attributes, run, l);
    pthread_attr_destroy(&attributes);
    return good;
}

cot_status cot_discovery_open(cot_discovery **out, cot_gateway *g, const char *text, cot_error *error)
{
    const char *const name = text + sizeof scheme - 1, *const colon = strrchr(name, ':');
    const size_t digits = colon ? strspn(colon + 1, "0123456789") : 0;
    const long port = digits && digits <= 5 && !colon[1 + digits] ? strtol(colon + 1, NULL, 10) : 0;
    *out = NULL;
    if (!colon || colon == name || strcspn(name, " /:@[]") < (size_t)(colon - name) || port < 1 ||
        port > 65535)
        return cot_fail(error, COT_INVALID_ARGUMENT, "'%s' is not dns:NAME:PORT", text);
    cot_discovery *d = calloc(1, sizeof *d);
    lookup *l = calloc(1, sizeof *l);
    if (l) l->name = strndup(name, (size_t)(colon - name));
    if (!d || !l || !l->name) {
        if (l) free(l->name);
        free(l);
        free(d);
        return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a name");
    }
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->now, &clock);
    pthread_condattr_destroy(&clock);
    *d = (cot_discovery){.gateway = g, .lookup = l};
    snprintf(d->port, sizeof d->port, "%ld", port);
    if (cot_wake_open(&l->wake, g->base, hear, d) && start(l)) {
        *out = d;
        return COT_OK;
    }
    cot_wake_close(&l->wake);
    free_lookup(l);
    free(d);
    return cot_fail(error, COT_IO, "cannot start to look up '%s'", text);
}

void cot_discovery_ask(cot_discovery *d)
{
    pthread_mutex_lock(&d->lookup->lock);
    d->lookup->asks = true;
    pthread_cond_signal(&d->lookup->now);
    pthread_mutex_unlock(&d->lookup->lock);
}

void cot_discovery_close(cot_discovery *d)
{
    if (!d) return;
    lookup *const l = d->lookup;
    pthread_mutex_lock(&l->lock);
    cot_wake_close(&l->wake); // the thread frees the rest when it comes back
    l->is_left = true;
    pthread_cond_signal(&l->now);
    pthread_mutex_unlock(&l->lock);
    free(d);
}
