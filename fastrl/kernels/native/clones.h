// Compiling a loop for several processors at once; the loader picks one when the module is loaded.
//
// Wheels are built for the plainest x86-64. With FASTRL_CLONES a function is compiled for AVX2 and
// AVX-512 as well, and every helper that it calls must be FASTRL_INLINE, to be compiled with it.
// Other processors and compilers get the plain loop.
#pragma once

#include <cstddef>  // says which C library this is

// The names of levels came with GCC 12, and the loader's choice is one of glibc.
#if defined(__x86_64__) && defined(__GLIBC__) && !defined(__clang__) && __GNUC__ >= 12
#define FASTRL_CLONES \
  __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default"), optimize("O3")))
#else
#define FASTRL_CLONES
#endif

#define FASTRL_INLINE inline __attribute__((always_inline))
