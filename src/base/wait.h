/* What a waiting thread does between two looks. */
#ifndef COT_BASE_WAIT_H
#define COT_BASE_WAIT_H
#include <sched.h>

static inline void cot_pause(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* The `round`-th look found nothing: spin a little, then give the core away. */
static inline void cot_relax(int round)
{
    if (round < 20)
        cot_pause();
    else
        sched_yield();
}

#endif
