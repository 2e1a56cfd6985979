/* Threads beside the one that a program begins with. */
#ifndef COT_BASE_THREAD_H
#define COT_BASE_THREAD_H
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>

/* Starts a thread that no signal is handled on: those are for the others. False when there are no more to be had; the
 * caller joins it otherwise. */
static inline bool cot_thread_start(pthread_t *thread, void *(*run)(void *argument), void *argument)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const bool started = pthread_create(thread, NULL, run, argument) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return started;
}

#endif
