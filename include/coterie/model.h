/* Models: which architectures this build runs. */
#ifndef COTERIE_MODEL_H
#define COTERIE_MODEL_H

#ifdef __cplusplus
extern "C" {
#endif

/* An architecture as config.json spells it, and the models that have it in one line. */
typedef struct cot_architecture {
    const char *name, *description;
} cot_architecture;

/* The architectures this build runs; a NULL name ends. Constant; thread-safe. */
const cot_architecture *cot_architectures(void);

#ifdef __cplusplus
}
#endif
#endif
