typedef int cot_model_room; // ISO C wants a declaration
