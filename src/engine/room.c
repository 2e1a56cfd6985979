typedef int cot_engine_room; // ISO C wants a declaration
