/* What ranks tell of themselves, so that the one to blame can be found when nothing comes any more. */
#ifndef COT_FABRIC_POSTS_H
#define COT_FABRIC_POSTS_H
#include "fabric/fabric.h"
#include <string.h>

static inline uint64_t cot_post_pack(cot_post post)
{
    uint64_t word;
    memcpy(&word, &post, sizeof word);
    return word;
}

static inline cot_post cot_post_unpack(uint64_t word)
{
    cot_post post;
    memcpy(&post, &word, sizeof post);
    return post;
}

/* Tells what fabric->post says. */
static inline void cot_post_tell(cot_fabric *fabric)
{
    fabric->ops->post(fabric, cot_post_pack(fabric->post));
}
static inline cot_post cot_post_of(cot_fabric *fabric, int rank)
{
    return cot_post_unpack(fabric->ops->posted(fabric, rank));
}

/* The rank that a wait for `from` is in vain for, by what all have posted: from it goes on to the rank that this one waits
 * for, or to one that has the turn it asks for, and ends at the first that is mute, or else at one that waits for nobody. */
int cot_blame_culprit(cot_fabric *fabric, int from);

/* The error of a wait in `phase` in a group of which `rank` has failed: TIMED_OUT where it does not answer, else PEER_FAILED. */
cot_status cot_blame_in_wait(cot_fabric *fabric, int rank, cot_phase phase, cot_error *error);
/* The same for a rank that does not wait. */
cot_status cot_blame_at_work(cot_fabric *fabric, int rank, cot_error *error);
/* The same by what the own rank has posted, for a thread beside it, of a rank that failed in that way (as
 * cot_fabric_ops.death has it). */
cot_status cot_blame_as_posted(cot_fabric *fabric, int rank, int death, cot_error *error);

#endif
