/* Messages with headers: <|channel|>NAME to=functions.TOOL <|constrain|>TYPE<|message|>BODY, and <|end|>, <|call|> or <|return|>
 * behind them. The prompt ends in <|start|>assistant. */
#include "dialect/parser.h"

#include <string.h>

enum { BEFORE = COT_DIALECT_IN_TEXT, HEADER = COT_DIALECT_IN_CALL, BODY };
enum { CONTENT, REASONING, CALL };
enum { HEADER_BYTES = 4 * COT_DIALECT_NAME_BYTES }; // of a header that are read

typedef enum mark { NONE, CHANNEL, START, MESSAGE, CONSTRAIN, END, OTHER } mark;

/* Messages are told apart by the first ones alone. */
enum { NEEDED = 5 };
static const struct {
    const char *text;
    mark mark;
} marks[] = {{"<|start|>", START}, {"<|channel|>", CHANNEL},     {"<|message|>", MESSAGE}, {"<|end|>", END},
             {"<|call|>", END},    {"<|constrain|>", CONSTRAIN}, {"<|return|>", END}};

const char *cot_dialect_needed_token(const cot_dialect *d, size_t number)
{
    return d->form == COT_DIALECT_HARMONY && number < NEEDED ? marks[number].text : NULL;
}

/* Which of the format's tokens is at `at`, its name, and what comes behind. */
static cot_dialect_look look_at(const cot_dialect_parser *p, size_t at, mark *m, const char **name,
                                size_t *bytes, size_t *next)
{
    *m = NONE;
    cot_dialect_look look = cot_dialect_token(p, at, name, bytes, next);
    if (look != COT_DIALECT_YES) return look;
    *m = OTHER;
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++)
        if (strlen(marks[i].text) == *bytes && memcmp(marks[i].text, *name, *bytes) == 0) *m = marks[i].mark;
    return look;
}

static void say(cot_dialect_parser *p, const char *text, size_t bytes)
{
    if (p->kind == CALL) {
        if (bytes) p->has_arguments = true;
        cot_dialect_argue(p, text, bytes);
    } else if (p->kind == REASONING)
        cot_dialect_reason(p, text, bytes);
    else
        cot_dialect_say(p, text, bytes);
}

/* Reads a header, in which the text before the channel is the role's: who is called, and what the message is. */
static void read_header(cot_dialect_parser *p)
{
    static const char to[] = "to=", space[] = "functions.";
    const char *text = p->key_text.data ? p->key_text.data : "", *at = text;
    const char *channel = memchr(text, '\n', p->key_text.bytes); // stands for the token
    p->kind =
        p->options.reasoning && channel && strncmp(channel + 1, "analysis", 8) == 0 ? REASONING : CONTENT;
    while ((at = strstr(at, to)) && at > text && !cot_dialect_is_space(at[-1])) at += sizeof to - 1;
    if (at && p->key_text.bytes < HEADER_BYTES && json_array_size(p->options.tools)) { // it may be cut else
        at += sizeof to - 1;
        if (strncmp(at, space, sizeof space - 1) == 0) at += sizeof space - 1;
        const size_t bytes = strcspn(at, " \n\t\r");
        if (cot_dialect_is_name(at, bytes)) {
            p->kind = CALL;
            p->has_arguments = false;
            cot_dialect_announce(p, at, bytes, NULL, 0);
        }
    }
    // messages of one kind are paragraphs
    if (p->kind == CONTENT && p->has_content && !p->gap.bytes) cot_dialect_keep(p, &p->gap, "\n", 1);
    if (p->kind == REASONING && p->has_reasoning && !p->reasoning_gap.bytes)
        cot_dialect_keep(p, &p->reasoning_gap, "\n", 1);
}

static void end_message(cot_dialect_parser *p)
{
    if (p->state == BODY && p->kind == CALL && !p->has_arguments && !p->is_cut) cot_dialect_argue(p, "{}", 2);
    p->state = BEFORE;
    p->kind = CONTENT;
}

cot_dialect_look cot_dialect_step_harmony(cot_dialect_parser *p)
{
    size_t at = p->at, next = at;
    mark m = NONE;
    if (p->state == BEFORE && !p->has_content && !p->gap.bytes &&
        !p->had_marker) { // the header that the prompt has begun goes on
        const cot_dialect_marker to = {" to=", 4, false};
        const cot_dialect_look look = cot_dialect_match(p, &to, at, &next);
        if (look == COT_DIALECT_MORE) return look;
        if (look == COT_DIALECT_YES) p->state = HEADER;
    }
    while (at < p->in.bytes && (unsigned char)p->in.data[at] < COT_DIALECT_END) at++;
    if (p->state == HEADER) {
        const size_t room = p->key_text.bytes < HEADER_BYTES ? HEADER_BYTES - p->key_text.bytes : 0;
        for (size_t i = p->at; i < at; i++) // a line's end is the channel's token
            if (p->in.data[i] == '\n' || !p->in.data[i]) p->in.data[i] = ' ';
        cot_dialect_keep(p, &p->key_text, p->in.data + p->at, at - p->at < room ? at - p->at : room);
    } else
        say(p, p->in.data + p->at, at - p->at);
    p->at = at;
    const char *name = NULL;
    size_t bytes = 0;
    const cot_dialect_look look = look_at(p, at, &m, &name, &bytes, &next);
    if (look != COT_DIALECT_YES) return COT_DIALECT_MORE;
    p->at = next;
    switch (m) {
    case START:
    case CHANNEL:
        if (p->state == BODY) end_message(p);
        if (p->state != HEADER) p->key_text.bytes = 0;
        p->state = HEADER;
        p->had_marker = true;
        if (m == CHANNEL) cot_dialect_keep(p, &p->key_text, "\n", 1);
        break;
    case MESSAGE:
        if (p->state != HEADER) p->key_text.bytes = 0;
        p->had_marker = true;
        p->state = BODY;
        read_header(p);
        break;
    case END:
        end_message(p);
        break;
    case CONSTRAIN:
        if (p->state == HEADER) cot_dialect_keep(p, &p->key_text, " ", 1);
        break;
    case OTHER:
    case NONE:
        if (p->options.shows_special && p->state != HEADER) say(p, name, bytes);
        break;
    }
    return COT_DIALECT_YES;
}

void cot_dialect_over_harmony(cot_dialect_parser *p)
{
    end_message(p);
}
