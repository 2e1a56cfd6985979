/* What of a book the room's other files ask for. */
#ifndef COT_ROUTE_BOOK_H
#define COT_ROUTE_BOOK_H
#include "coterie/route.h"

size_t cot_route_book_targets(const cot_route_book *book);
/* Whether its policy takes the least of what cot_route_score tells. */
bool cot_route_book_scores(const cot_route_book *book);
/* Whether the request, which is in the book, is the only one that a target gets after it failed. */
bool cot_route_is_trial(const cot_route_book *book, uint64_t number);

#endif
