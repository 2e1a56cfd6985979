#include "fabric/shmem/calls.h"

#include <dlfcn.h>
#include <limits.h>
#include <mpi.h>
#include <shmem.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#define UCP "libucp.so.0"
#define UCS "libucs.so.0"

enum { ALIGN = 2 << 20 };

static bool opened;
static bool (*set_yield)(
    bool yields); // Open MPI's own, which returns what was set before; NULL: it is another library

extern char _end[]; // so that this object shows its own (cmake/shmem.cmake)
static const char *const volatile nothing_is_static = _end;

static void (*attendant)(void *context);
static void *attended;

static int call_attendant(void)
{
    if (attendant) attendant(attended);
    return 0; // so many messages have moved
}

/* ---- what UCX has chosen ---- */

/* Open MPI does not tell, and UCX tells of an endpoint, which Open MPI keeps to itself. So this object, in which the linker finds
 * the function first, notes each endpoint as it is made. */
enum { MOST_ENDPOINTS = 256 };
static void *endpoints[MOST_ENDPOINTS];
static int n_endpoints;

/* That library's own function of the name; NULL: it is not loaded. */
static void *of_library(const char *library, const char *name)
{
    void *loaded = dlopen(library, RTLD_NOW | RTLD_NOLOAD);
    return loaded ? dlsym(loaded, name) : NULL;
}

signed char ucp_ep_create(void *worker, const void *parameters, void **endpoint);
signed char ucp_ep_create(void *worker, const void *parameters, void **endpoint)
{
    static signed char (*create)(void *, const void *, void **);
    static const signed char not_implemented = -2; // UCS_ERR_UNSUPPORTED is no better where there is no UCX
    if (!create) *(void **)&create = of_library(UCP, "ucp_ep_create");
    const signed char status = create ? create(worker, parameters, endpoint) : not_implemented;
    if (status == 0 && n_endpoints < MOST_ENDPOINTS) endpoints[n_endpoints++] = *endpoint;
    return status;
}

/* "lane[0]:  2:tcp/eth0.0 md[1] ...": adds tcp/eth0, unless it is memory, or there. */
static void add_carrier(char *words, size_t bytes, const char *line)
{
    char name[64], between[3] = ", ";
    const char *lane = strstr(line, "lane[");
    if (!lane || sscanf(lane, "lane[%*d]: %*d:%63[^. ]", name) != 1 || strstr(name, "/memory") ||
        strstr(words, name))
        return;
    const size_t used = strlen(words);
    snprintf(words + used, bytes - used, "%s%s", used ? between : "", name);
}

static void carriers(char *words, size_t bytes)
{
    void (*print)(void *endpoint, FILE *stream);
    *(void **)&print = of_library(UCP, "ucp_ep_print_info");
    *words = 0;
    for (int i = 0; print && i < n_endpoints; i++) {
        char *text = NULL;
        size_t length;
        FILE *stream = open_memstream(&text, &length);
        if (!stream) return;
        print(endpoints[i], stream);
        fclose(stream);
        for (char *rest, *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
            add_carrier(words, bytes, line);
        free(text);
    }
}

/* ---- a rank that is gone ---- */

/* Where UCX hears that a connection is lost, it gives up what is at the other end, and no more. Where a send of its own finds that,
 * as of its answer to a put of one that was killed since, it ends this process. So the functions by which it sends, of which the
 * linker finds these first as well, take what has nobody to go to for sent, once the group meets. */
typedef signed char send_part(int fd, const void *data, size_t *bytes);
typedef signed char send_parts(int fd, struct iovec *parts, size_t count, size_t *bytes);

enum { IO_ERROR = -3, TIMED_OUT = -20, NOT_CONNECTED = -24, CONNECTION_RESET = -25 }; // UCS_ERR_...

static bool is_lost(signed char status)
{
    return attendant && (status == TIMED_OUT || status == NOT_CONNECTED || status == CONNECTION_RESET);
}

send_part ucs_socket_send_nb;
signed char ucs_socket_send_nb(int fd, const void *data, size_t *bytes)
{
    static send_part *send;
    const size_t all = *bytes;
    if (!send) *(void **)&send = of_library(UCS, "ucs_socket_send_nb");
    const signed char status = send ? send(fd, data, bytes) : IO_ERROR;
    if (!is_lost(status)) return status;
    *bytes = all;
    return 0;
}

send_parts ucs_socket_sendv_nb;
signed char ucs_socket_sendv_nb(int fd, struct iovec *parts, size_t count, size_t *bytes)
{
    static send_parts *send;
    if (!send) *(void **)&send = of_library(UCS, "ucs_socket_sendv_nb");
    const signed char status = send ? send(fd, parts, count, bytes) : IO_ERROR;
    if (!is_lost(status)) return status;
    *bytes = 0;
    for (size_t i = 0; i < count; i++) *bytes += parts[i].iov_len;
    return 0;
}

static bool join(int *rank, int *ranks)
{
    int provided;
    (void)nothing_is_static;
    setenv("OMPI_MCA_opal_common_ucx_opal_mem_hooks", "0", 1);      // with them Open MPI 4.1 falls as it ends
    setenv("OMPI_MCA_opal_common_ucx_progress_iterations", "1", 0); // see progress
    /* Nothing goes through these: of a rank that dies vader leaves a file in /dev/shm, and ofi sleeps a second at the end. */
    setenv("OMPI_MCA_btl", "^vader,ofi", 0);
    MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &provided);
    *(void **)&set_yield = dlsym(RTLD_DEFAULT, "opal_progress_set_yield_when_idle");
    int (*call_in_loops)(int (*callback)(void)); // in those in which Open MPI waits for whatever it may be
    *(void **)&call_in_loops = dlsym(RTLD_DEFAULT, "opal_progress_register");
    if (call_in_loops) call_in_loops(call_attendant);
    MPI_Comm_rank(MPI_COMM_WORLD, rank);
    MPI_Comm_size(MPI_COMM_WORLD, ranks);
    return provided >= MPI_THREAD_SERIALIZED;
}

static void exchange(void *all, const void *own, size_t bytes)
{
    MPI_Allgather(own, (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE, MPI_COMM_WORLD);
}

static void share(void *data, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += INT_MAX)
        MPI_Bcast((char *)data + at, (int)(bytes - at < INT_MAX ? bytes - at : INT_MAX), MPI_BYTE, 0,
                  MPI_COMM_WORLD);
}

/* ---- signals ---- */

/* What who started this process asks of all ranks it follows up itself: until it kills them they may tell what they know. */
static void end_at_term(int number, siginfo_t *info, void *unused)
{
    (void)unused;
    if (info->si_pid == getppid()) return;
    signal(number, SIG_DFL);
    raise(number);
}

static const int taken[] = {SIGHUP, SIGUSR1, SIGTERM}; // by Open MPI, for handlers that do nothing
enum { TAKEN = sizeof taken / sizeof *taken };

static void note_signals(struct sigaction before[TAKEN])
{
    for (int i = 0; i < TAKEN; i++) sigaction(taken[i], NULL, &before[i]);
}

static void give_back_signals(struct sigaction before[TAKEN])
{
    const struct sigaction ends = {.sa_sigaction = end_at_term, .sa_flags = SA_SIGINFO | SA_RESTART};
    for (int i = 0; i < TAKEN; i++) {
        const bool plain = taken[i] == SIGTERM && before[i].sa_handler == SIG_DFL;
        sigaction(taken[i], plain ? &ends : &before[i], NULL);
    }
}

/* Open MPI's heap takes some of its size for itself. */
static void *open_heap(size_t bytes)
{
    char size[32];
    int provided;
    struct sigaction before[TAKEN];
    note_signals(before);
    snprintf(size, sizeof size, "%zu", bytes + bytes / 64 + 4 * (size_t)ALIGN);
    setenv("SHMEM_SYMMETRIC_HEAP_SIZE", size, 1);
    const int failed = shmem_init_thread(SHMEM_THREAD_SERIALIZED, &provided);
    give_back_signals(before);
    if (failed || provided < SHMEM_THREAD_SERIALIZED) return NULL;
    opened = true;
    return shmem_align(ALIGN, bytes);
}

static void settle(void)
{
    shmem_barrier_all();
}

static void *reach(const void *own, int rank)
{
    return shmem_ptr(own, rank);
}

static void put(int to, void *own, const void *data, size_t bytes)
{
    shmem_putmem(own, data, bytes, to);
}

/* A put, which need not be answered: an atomic one would wait for that, since Open MPI makes a swap of it. */
static void raise_word(int to, uint64_t *own, uint64_t value)
{
    shmem_fence();
    shmem_ulong_p((unsigned long *)own, value, to);
}

static void attend(void (*waits)(void *context), void *context)
{
    attended = context;
    attendant = waits;
}

/* OpenSHMEM has no call for it that returns at once, but in one process the two move each other's messages: in Open MPI at one of
 * so many looks as `join` has set, 100 if it were not. Where there are more ranks than cores Open MPI gives the core away whenever it
 * finds nothing; here who looks decides that. */
static void progress(void)
{
    int there;
    const bool yields = set_yield && set_yield(false);
    MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &there, MPI_STATUS_IGNORE);
    if (yields) set_yield(true);
}

/* What the program has written is out: what Open MPI prints from here on, of ranks that are gone, is no data. */
static void leave(void)
{
    dup2(STDERR_FILENO, STDOUT_FILENO);
    if (opened) shmem_finalize();
    int over;
    MPI_Finalized(&over);
    if (!over) MPI_Finalize();
}

const cot_shmem_calls cot_shmem_module = {
    COT_VERSION, join,       exchange, share,    open_heap, settle, reach,
    put,         raise_word, attend,   carriers, progress,  leave,
};
