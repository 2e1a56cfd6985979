#include "harness/seed.h"
