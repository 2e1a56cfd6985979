/* How many cores there are to work on: cot_cores of coterie/roof.h, and what it reads. */
#ifndef COT_KERNELS_CORES_H
#define COT_KERNELS_CORES_H

enum { COT_CORES_MOST = 1024 };

/* The least share of processors' time, in cores and rounded up, that a control group (version 2) which `groups`
 * (/proc/self/cgroup) names, or one above it, is given by its cpu.max below `root`; 0: all there is. Thread-safe. */
long cot_cores_quota(const char *groups, const char *root);

#endif
