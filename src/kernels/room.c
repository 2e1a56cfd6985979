typedef int cot_kernels_room; // ISO C wants a declaration
