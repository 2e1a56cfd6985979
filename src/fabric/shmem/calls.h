/* What the module offers that speaks OpenSHMEM: a shared object of its own, so that the program needs no MPI. It is
 * looked for when a group of that kind is asked for (find.c), and works with any library that has both MPI and OpenSHMEM
 * in one process, as Open MPI's does.
 *
 * A process is one rank for as long as it lives. What all ranks do together - join, exchange, share, open, settle,
 * leave - may wait for them without end, and is for before a group has opened and after it has ended; put, raise and
 * progress wait for nobody's attention. One thread at a time may call. */
#ifndef COT_FABRIC_SHMEM_CALLS_H
#define COT_FABRIC_SHMEM_CALLS_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct cot_shmem_calls {
    const char *version; // of the library that it was built with
    /* Once: makes this process a rank beside those that were started with it. False: it may not be called from threads. */
    bool (*join)(int *rank, int *ranks);
    /* all [ranks][bytes] becomes what each rank gave as `own`. */
    void (*exchange)(void *all, const void *own, size_t bytes);
    /* `data` becomes rank 0's. */
    void (*share)(void *data, size_t bytes);
    /* Once: symmetric memory of at least 2 MiB, at a multiple of that. NULL: there is not so much. */
    void *(*open)(size_t bytes);
    /* Waits until all that any rank has put so far is there. */
    void (*settle)(void);
    /* Where this process sees another rank's symmetric memory that is at `own` here; NULL: it is elsewhere. */
    void *(*reach)(const void *own, int rank);
    /* To the place of `own` in rank `to`'s memory. `data` may be reused on return. */
    void (*put)(int to, void *own, const void *data, size_t bytes);
    /* Sets the word, which the target sees after the puts to it that came before. */
    void (*raise)(int to, uint64_t *own, uint64_t value);
    /* From now on, while put or raise waits for room, calls `waits(context)` again and again, which may raise at other ranks, or
     * end the process. NULL: no more. A library other than Open MPI's may have no such place. */
    void (*attend)(void (*waits)(void *context), void *context);
    /* Names what carries messages to ranks whose memory is elsewhere, as in "tcp/eth0"; "": that is not known. */
    void (*carriers)(char *words, size_t bytes);
    /* Lets what others have sent land here. */
    void (*progress)(void);
    void (*leave)(void);
} cot_shmem_calls;

/* The module's one symbol. */
extern const cot_shmem_calls cot_shmem_module;

#endif
