#include "tokenizer/jinja/sort.h"

/* Merges [from, middle) and [middle, to) of `order` by way of `spare`. */
static void merge(cot_jinja_run *run, const cot_jinja_value *keys, bool descending, size_t *order,
                  size_t *spare, size_t from, size_t middle, size_t to)
{
    size_t left = from, right = middle;
    for (size_t i = from; i < to; i++) {
        bool second = left == middle;
        if (!second && right < to) {
            const cot_jinja_value a = keys[order[left]], b = keys[order[right]];
            second =
                descending ? cot_jinja_compare(run, a, b, "<") < 0 : cot_jinja_compare(run, b, a, "<") < 0;
        }
        spare[i] = second ? order[right++] : order[left++];
    }
    for (size_t i = from; i < to; i++) order[i] = spare[i];
}

size_t *cot_jinja_sorted(cot_jinja_run *run, const cot_jinja_value *keys, size_t count, bool descending)
{
    size_t *order = cot_jinja_take(run, count, sizeof *order);
    size_t *spare = cot_jinja_take(run, count, sizeof *spare);
    for (size_t i = 0; i < count; i++) order[i] = i;
    for (size_t width = 1; width < count; width *= 2)
        for (size_t from = 0; from + width < count; from += 2 * width)
            merge(run, keys, descending, order, spare, from, from + width,
                  from + 2 * width < count ? from + 2 * width : count);
    return order;
}
