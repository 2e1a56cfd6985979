typedef int cot_fabric_room; // ISO C wants a declaration
