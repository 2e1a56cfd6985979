/* cmocka's own header wants these before it. */
#ifndef COT_TESTS_HARNESS_CMOCKA_H
#define COT_TESTS_HARNESS_CMOCKA_H
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#endif
