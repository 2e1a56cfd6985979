/* Headers of the house that are C follow, for C++; cuda/c_end.h ends them. Nothing there touches what is atomic in C. Included as
 * often as needed. */
#define _Static_assert static_assert
#define _Atomic
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpedantic"
#pragma GCC diagnostic ignored "-Wc++20-extensions"
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"
extern "C" {
