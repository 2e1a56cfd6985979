#include "fabric/posts.h"

#include "base/error.h"

#include <stdio.h>

/* ---- who ---- */

static bool is_mute(cot_fabric *fabric, int rank)
{
    return rank != fabric->rank && fabric->ops->is_mute && fabric->ops->is_mute(fabric, rank);
}

/* Who computes while `rank` asks for a turn: first of all one that is mute. -1: nobody. */
static int holder(cot_fabric *fabric, int rank)
{
    int found = -1;
    for (int r = 0; r < fabric->ranks; r++) {
        if (r == rank || cot_post_of(fabric, r).turn != COT_TURN_HELD) continue;
        if (is_mute(fabric, r)) return r;
        if (found < 0) found = r;
    }
    return found;
}

int cot_blame_culprit(cot_fabric *fabric, int from)
{
    int who = from;
    for (int hops = 0; hops < fabric->ranks && !is_mute(fabric, who); hops++) {
        const cot_post post = cot_post_of(fabric, who);
        const int behind = post.awaits                       ? post.awaits - 1
                           : post.turn == COT_TURN_ASKED_FOR ? holder(fabric, who)
                                                             : -1;
        if (behind < 0) break;
        who = behind;
    }
    return who == fabric->rank ? from : who; // a ring of waits has no end
}

/* ---- in words ---- */

enum { WORDS = 96 };

/* "rank 3", or "rank 3 on HOST". */
static void name_rank(char words[WORDS], cot_fabric *fabric, int rank)
{
    const char *host = fabric->ops->host ? fabric->ops->host(fabric, rank) : NULL;
    if (host)
        snprintf(words, WORDS, "rank %d on %s", rank, host);
    else
        snprintf(words, WORDS, "rank %d", rank);
}

static void describe_end(char words[WORDS], int death)
{
    if (death > 0)
        snprintf(words, WORDS, "was killed by signal %d", death);
    else
        snprintf(words, WORDS, "%s", death ? "ended" : "failed");
}

/* " (layer 3)", or nothing. */
static void name_stage(char words[WORDS], cot_post post)
{
    static const char *const names[] = {
#define COT_STAGE_NAME(name, text) text,
        COT_STAGE_LIST(COT_STAGE_NAME)
#undef COT_STAGE_NAME
    };
    if (post.stage == COT_STAGE_LAYER)
        snprintf(words, WORDS, " (layer %d)", post.layer);
    else if (post.stage && post.stage < COT_STAGES)
        snprintf(words, WORDS, " (%s)", names[post.stage]);
    else
        *words = 0;
}

/* doing: of the own rank, as in "waited in 'combine'"; in: of the silence, as in "in 'combine'"; may be empty. */
static cot_status tell(cot_fabric *fabric, int rank, int death, cot_post own, const char *doing,
                       const char *in, cot_error *error)
{
    const double seconds = (double)fabric->timeout_ns * 1e-9;
    char who[WORDS], how[WORDS], stage[WORDS];
    name_rank(who, fabric, rank);
    name_stage(stage, own);
    if (death == COT_DEATH_MUTE && rank == fabric->rank)
        return cot_fail(error, COT_TIMED_OUT,
                        "%s was given up by the others%s%s%s: it did not answer within %.1f s", who,
                        *in ? " " : "", in, stage, seconds);
    if (death == COT_DEATH_MUTE)
        return cot_fail(error, COT_TIMED_OUT, "%s did not answer%s%s%s within %.1f s", who, *in ? " " : "",
                        in, stage, seconds);
    describe_end(how, death);
    return cot_fail(error, COT_PEER_FAILED, "%s %s%s%s", who, how, doing, stage);
}

cot_status cot_blame_in_wait(cot_fabric *fabric, int rank, cot_phase phase, cot_error *error)
{
    char doing[WORDS], in[WORDS];
    snprintf(doing, sizeof doing, " while rank %d waited in '%s'", fabric->rank, cot_phase_name(phase));
    snprintf(in, sizeof in, "in '%s'", cot_phase_name(phase));
    return tell(fabric, rank, fabric->ops->death(fabric, rank), fabric->post, doing, in, error);
}

cot_status cot_blame_at_work(cot_fabric *fabric, int rank, cot_error *error)
{
    return tell(fabric, rank, fabric->ops->death(fabric, rank), fabric->post, "", "", error);
}

cot_status cot_blame_as_posted(cot_fabric *fabric, int rank, int death, cot_error *error)
{
    const cot_post own = cot_post_of(fabric, fabric->rank);
    char doing[WORDS], in[WORDS] = "";
    snprintf(doing, sizeof doing, " while rank %d was at work", fabric->rank);
    if (own.awaits) {
        snprintf(doing, sizeof doing, " while rank %d waited in '%s'", fabric->rank,
                 cot_phase_name((cot_phase)own.phase));
        snprintf(in, sizeof in, "in '%s'", cot_phase_name((cot_phase)own.phase));
    }
    return tell(fabric, rank, death, own, doing, in, error);
}
