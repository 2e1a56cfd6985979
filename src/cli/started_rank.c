#include "started_rank.h"

#include "command.h"
#include "coterie/started.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static void *tell_of_life(void *argument)
{
    const double *period_s = argument;
    const struct timespec period = {.tv_sec = (time_t)*period_s,
                                    .tv_nsec = (long)((*period_s - (double)(time_t)*period_s) * 1e9)};
    for (;;) {
        nanosleep(&period, NULL);
        cot_launch_tell("lives", 0);
    }
    return NULL;
}

/* A thread that no signal comes to. */
static void begin_thread(void *(*run)(void *), void *argument)
{
    pthread_t thread;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    if (pthread_create(&thread, NULL, run, argument) == 0) pthread_detach(thread);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void cot_tell_starter(void)
{
    static double period_s;
    const char *period = getenv(COT_STARTED_VARIABLE);
    cot_launch_tell("begins", 0);
    if (period && (period_s = atof(period)) >= 1e-3) begin_thread(tell_of_life, &period_s);
}

static atomic_bool waits_for_input;

void cot_wait_for_input(bool waits)
{
    atomic_store(&waits_for_input, waits);
}

/* Who was stopped itself for a while has not waited meanwhile. */
static void *end_unless_met(void *argument)
{
    const double *timeout_s = argument;
    const struct timespec second = {.tv_sec = 1};
    for (double passed_s = 0; passed_s < *timeout_s; passed_s += !atomic_load(&waits_for_input)) {
        nanosleep(&second, NULL);
        if (cot_launch_met()) return NULL;
    }
    dprintf(STDERR_FILENO, "coterie: rank %d: the ranks have not met within %.1f s\n",
            cot_launch_started().rank, *timeout_s);
    _exit(COT_EXIT_FAILURE);
}

void cot_bound_meeting(double timeout_s)
{
    static double most_s;
    if (getenv(COT_STARTED_VARIABLE)) return;
    most_s = timeout_s > COT_LEAST_START_S ? timeout_s : COT_LEAST_START_S;
    begin_thread(end_unless_met, &most_s);
}
