// The exponential as a loop over it becomes vector code.
#pragma once

#include <bit>
#include <cstdint>

#include "clones.h"

namespace fastrl {

// exp(x) for -87 <= x <= 0, to 2 units in the last place. The range reduction and the polynomial of
// Cephes' expf, without its branches.
FASTRL_INLINE float exp_within(float x) {
  const float n = static_cast<float>(static_cast<std::int32_t>(x * 1.44269504f - 0.5f));
  float r = x - n * 0.693359375f;
  r = r + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  return p * std::bit_cast<float>((static_cast<std::int32_t>(n) + 127) << 23);
}

// exp(x) for x <= 0; 0 below -87.
FASTRL_INLINE float exp_of_negative(float x) {
  const float e = exp_within(x > -87.0f ? x : -87.0f);
  return x > -87.0f ? e : 0.0f;
}

}  // namespace fastrl
