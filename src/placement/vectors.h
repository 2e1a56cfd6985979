/* Loops that gcc makes vectors of. */
#ifndef COT_PLACEMENT_VECTORS_H
#define COT_PLACEMENT_VECTORS_H

/* Compiled for wide vectors as well, chosen when the program is loaded: too early for the thread sanitizer. */
#if defined __x86_64__ && defined __ELF__ && !defined __SANITIZE_THREAD__ && !defined __clang__
#define COT_VECTORS __attribute__((target_clones("avx2", "default")))
#else
#define COT_VECTORS
#endif

#endif
