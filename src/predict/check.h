/* Whether what a file's tables hold can be what training writes. `subject` names the file in messages. */
#ifndef COT_PREDICT_CHECK_H
#define COT_PREDICT_CHECK_H
#include "predict/predictor.h"

/* expert_rank_u8 alone: every rank below D. Errors: MALFORMED. */
cot_status cot_check_groups(const cot_predictor *predictor, const char *subject, cot_error *error);
/* All other tables, once they have their shapes: every rank, row, expert and offset in range. Errors: MALFORMED. */
cot_status cot_check_tables(const cot_predictor *predictor, const char *subject, cot_error *error);

#endif
