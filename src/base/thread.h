/* Threads beside the one that a program begins with. */
#ifndef COT_BASE_THREAD_H
#define COT_BASE_THREAD_H
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>

/* Starts a thread that no signal is handled on, but those of its own faults: all others are for other threads. False when
 * there are no more to be had; the caller joins it otherwise. */
static inline bool cot_thread_start(pthread_t *thread, void *(*run)(void *argument), void *argument)
{
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP};
    sigset_t others, before;
    sigfillset(&others);
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) sigdelset(&others, faults[i]);
    pthread_sigmask(SIG_SETMASK, &others, &before);
    const bool started = pthread_create(thread, NULL, run, argument) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return started;
}

#endif
