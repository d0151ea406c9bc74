// Uniform numbers that are a hash of what they are for; the mathematics is in fastrl/models/noise.py.
#pragma once

#include <cstddef>
#include <cstdint>

#include "clones.h"

namespace fastrl {

constexpr std::uint64_t golden = 0x9E3779B97F4A7C15u;

// The finaliser of SplitMix64.
FASTRL_INLINE std::uint64_t mix(std::uint64_t word) {
  word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9u;
  word = (word ^ (word >> 27)) * 0x94D049BB133111EBu;
  return word ^ (word >> 31);
}

// out [N, dims]: odd multiples of 2^-24 between 0 and 1.
FASTRL_CLONES
void uniform(std::uint64_t key, const std::int64_t* env, const std::int64_t* step,
             std::size_t count, std::size_t dims, float* out) {
  for (std::size_t i = 0; i < count; ++i) {
    std::uint64_t row = mix(static_cast<std::uint64_t>(env[i]) * golden + key);
    row = mix(row + static_cast<std::uint64_t>(step[i]) * golden);
    for (std::size_t d = 0; d < dims; ++d) {
      const std::uint64_t word = mix(row + (d + 1) * golden);
      out[i * dims + d] =
          static_cast<float>(static_cast<std::int32_t>((word >> 40) | 1u)) * 0x1p-24f;
    }
  }
}

}  // namespace fastrl
