typedef int cot_moe_room; // ISO C wants a declaration
