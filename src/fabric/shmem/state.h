/* What a group of processes that were started from outside is made of, in one of them. */
#ifndef COT_FABRIC_SHMEM_STATE_H
#define COT_FABRIC_SHMEM_STATE_H
#include "fabric/shmem/shmem.h"
#include "fabric/turns.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdalign.h>

enum { COT_SHMEM_LINE = 64, COT_SHMEM_MUTE = 1 << 16, COT_SHMEM_GATHERED = 1 << 14 };

/* Symmetric: on every rank at the same place. */
struct words {
    alignas(
        COT_SHMEM_LINE) _Atomic uint64_t failed; // COT_SHMEM_MUTE | 1 + a rank that gave up or was found dead
    alignas(COT_SHMEM_LINE) _Atomic uint64_t arrived[COT_MAX_RANKS], left[COT_MAX_RANKS],
        posts[COT_MAX_RANKS], beats[COT_MAX_RANKS]; // [r] by rank r
    alignas(COT_SHMEM_LINE) cot_turns turns;
};

/* Small puts to one rank, to places that follow each other. */
struct gathered {
    int to;
    cot_phase phase; // of the first
    cot_sym where;
    size_t bytes; // 0: none
    unsigned char data[COT_SHMEM_GATHERED];
};

struct endpoint {
    cot_fabric fabric; // first: a cot_fabric * is a struct endpoint *
    cot_shmem_world *world;
    unsigned char *heap;
    size_t bytes, used;
    unsigned char *seen[COT_MAX_RANKS]; // other ranks' heaps; NULL: out of sight
    bool far;                           // some are out of sight
    struct gathered gathered;           // what one message is to bring to such a rank
    pthread_mutex_t
        calling; // for the module's calls; recursive: while one waits for room its thread makes others
    int calls;   // that are under way, one within the other
    bool in_call[COT_MAX_RANKS];        // there is one to that rank
    cot_post call;                      // of the outermost: whom it awaits, and what for
    int64_t call_ns;                    // and since when
    uint64_t post_in_call, post_before; // what was posted then, and stood there before; 0: nothing was
    int lives[COT_MAX_RANKS]; // of other ranks on this host: a descriptor that tells of the end; -1: none
    int processes[COT_MAX_RANKS];
    char hosts[COT_MAX_RANKS][sizeof((cot_shmem_host *)0)->name];
    bool one_host;
    pthread_t watch;
    sem_t over;                              // of the watch
    int64_t period_ns, looked_ns;            // it looks so often, and last did then; 0: the group has not met
    int64_t failed_ns;                       // when it saw that the group has failed; 0: it has not
    uint64_t told;                           // the post that those out of sight know
    uint64_t heard[COT_MAX_RANKS];           // the last beats of those out of sight
    _Atomic int64_t quiet_ns[COT_MAX_RANKS]; // for how long others were seen to be stopped, or not to beat
};

static inline struct endpoint *cot_shmem_endpoint(cot_fabric *fabric)
{
    return (struct endpoint *)fabric;
}

static inline struct words *cot_shmem_words(struct endpoint *self)
{
    return (struct words *)(void *)self->heap;
}

/* Sets rank `to`'s word, which it sees after what was put to it before. */
void cot_shmem_raise(struct endpoint *self, int to, cot_sym where, uint64_t value, cot_phase phase);
/* Lets what was sent here land, unless a thread that is calling does so already. */
void cot_shmem_progress(struct endpoint *self);

/* ---- who lives (watch.c) ---- */

/* Begins the thread, and makes `calling`. False: no thread can be had. */
bool cot_shmem_watch_begin(struct endpoint *self);
/* The group has met: from now on there is something to look at. */
void cot_shmem_watch_meet(struct endpoint *self);
void cot_shmem_watch_end(struct endpoint *self);
/* When no call is under way any more. */
void cot_shmem_watch_out_of_call(struct endpoint *self);

/* As cot_fabric_ops has them. */
void cot_shmem_fail(cot_fabric *fabric);
void cot_shmem_accuse(cot_fabric *fabric, int rank);
int cot_shmem_failed(cot_fabric *fabric);
int cot_shmem_death(cot_fabric *fabric, int rank);
int cot_shmem_lost(cot_fabric *fabric);
void cot_shmem_post(cot_fabric *fabric, uint64_t post);
uint64_t cot_shmem_posted(cot_fabric *fabric, int rank);
bool cot_shmem_is_mute(cot_fabric *fabric, int rank);

#endif
