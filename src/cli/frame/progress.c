#include "cli/frame/progress.h"

#include "cli/frame/clock.h"
#include "cli/frame/terminal.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* The line, of which a terminal has one; `mutex` guards all of it. */
static struct {
    pthread_mutex_t mutex;
    pthread_cond_t ended;
    pthread_t thread; // draws every second
    bool shown, has_thread, visible;
    const char *what;
    uint64_t done, total;
    int64_t began_ns, drawn_ns;
} line = {.mutex = PTHREAD_MUTEX_INITIALIZER, .ended = PTHREAD_COND_INITIALIZER};

static void wipe(void)
{
    if (line.visible) fputs("\r\033[K", stderr);
    line.visible = false;
}

static void draw(int64_t now)
{
    enum { CELLS = 40 };
    const int64_t seconds = (now - line.began_ns) / 1000000000;
    fprintf(stderr, "\r%s", line.what);
    if (line.total) {
        const double share = line.done < line.total ? (double)line.done / (double)line.total : 1;
        char bar[CELLS + 1] = "";
        memset(bar, '.', CELLS);
        memset(bar, '#', (size_t)(share * CELLS));
        fprintf(stderr, " [%s] %3.0f %%", bar, 100 * share);
    }
    if (seconds) fprintf(stderr, ", %lld s", (long long)seconds);
    fputs("\033[K", stderr);
    fflush(stderr);
    line.visible = true;
    line.drawn_ns = now;
}

static void *draw_every_second(void *unused)
{
    (void)unused;
    pthread_mutex_lock(&line.mutex);
    while (line.shown) {
        struct timespec next;
        clock_gettime(CLOCK_REALTIME, &next);
        next.tv_sec++;
        pthread_cond_timedwait(&line.ended, &line.mutex, &next);
        if (line.shown) draw(cli_now_ns());
    }
    pthread_mutex_unlock(&line.mutex);
    return NULL;
}

void cli_progress_show(cli_progress *progress, uint64_t done, uint64_t total)
{
    if (!cli_terminal(stderr)) return;
    const int64_t now = cli_now_ns();
    pthread_mutex_lock(&line.mutex);
    if (!progress->began_ns) progress->began_ns = now;
    const bool same = line.shown && line.what == progress->what;
    line.what = progress->what;
    line.began_ns = progress->began_ns;
    line.done = done;
    line.total = total;
    if (!line.shown) { // without a thread it is drawn by calls alone
        line.shown = true;
        line.has_thread = !pthread_create(&line.thread, NULL, draw_every_second, NULL);
    }
    if (total && (!same || now - line.drawn_ns >= 100000000)) draw(now);
    pthread_mutex_unlock(&line.mutex);
}

void cli_progress_end(cli_progress *progress)
{
    if (!progress->began_ns) return;
    progress->began_ns = 0;
    pthread_mutex_lock(&line.mutex);
    const bool join = line.shown && line.has_thread;
    line.shown = line.has_thread = false;
    pthread_cond_signal(&line.ended);
    wipe();
    pthread_mutex_unlock(&line.mutex);
    if (join) pthread_join(line.thread, NULL);
}

void cli_progress_make_way(void)
{
    pthread_mutex_lock(&line.mutex);
    wipe();
    pthread_mutex_unlock(&line.mutex);
}
