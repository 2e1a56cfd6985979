#include "engine/compose.h"

int32_t cot_compose(cot_span *spans, cot_request_state *const *active, int64_t count,
                    const cot_scheduler_limits *limits)
{
    int64_t room = limits->step_tokens, rows = limits->step_logits;
    int32_t written = 0;
    for (int prompts = 0; prompts < 2; prompts++)
        for (int64_t i = 0; i < count && room > 0 && rows > 0; i++) {
            const cot_request_state *r = active[i];
            int64_t tokens = r->known - r->fed;
            if (prompts != (r->fed < r->prompt_tokens)) continue;
            if (tokens > room) tokens = room;
            if (r->all_logits && tokens > rows) tokens = rows;
            int64_t logits = r->all_logits ? tokens : r->fed + tokens == r->known;
            spans[written++] = (cot_span){r->row, r->home, (int32_t)r->fed, (int32_t)tokens, (int32_t)logits};
            room -= tokens;
            rows -= logits;
        }
    return written;
}
