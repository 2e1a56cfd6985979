/* What a process does that is a rank, since oshrun has started it. */
#include "coterie/start.h"

#include "base/thread.h"
#include "coterie/started.h"

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

static void begin_thread(void *(*run)(void *), void *argument)
{
    pthread_t thread;
    if (cot_thread_start(&thread, run, argument)) pthread_detach(thread);
}

void cot_start_tell(void)
{
    static double period_s;
    const char *period = getenv(COT_STARTED_VARIABLE);
    cot_launch_tell("begins", 0);
    if (period && (period_s = atof(period)) >= 1e-3) begin_thread(tell_of_life, &period_s);
}

static atomic_bool waits_for_input;

void cot_start_wait_for_input(bool waits)
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
    _exit(EXIT_FAILURE);
}

void cot_start_bound_meeting(double timeout_s)
{
    static double most_s;
    if (getenv(COT_STARTED_VARIABLE)) return;
    most_s = timeout_s > COT_START_LEAST_S ? timeout_s : COT_START_LEAST_S;
    begin_thread(end_unless_met, &most_s);
}
