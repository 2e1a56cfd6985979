typedef int cot_routing_room; // ISO C wants a declaration
