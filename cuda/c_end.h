/* Ends what cuda/c_begin.h began. */
}
#pragma GCC diagnostic pop
#undef _Static_assert
#undef _Atomic
