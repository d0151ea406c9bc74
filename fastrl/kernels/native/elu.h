// ELU of bf16 numbers in place: x where it is positive, exp(x) - 1 elsewhere.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "clones.h"
#include "exponential.h"
#include "images.h"

namespace fastrl {

constexpr std::size_t elu_block = 64;

// By bits: of comparisons of floats GCC makes branches, and signs are hard to foretell. As unsigned
// numbers the bits of negative floats grow with their size.
FASTRL_INLINE void elu_of_block(std::uint16_t* x) {
  // exp(x) - 1 would lose the digits of an x nearer to 0 than this, for which x is as near as bf16
  // can be.
  constexpr auto small = std::bit_cast<std::uint32_t>(-0.0009765625f);
  constexpr auto lowest = std::bit_cast<std::uint32_t>(-87.0f);
  constexpr auto infinite = 0xff800000u;  // beyond it are those that are no numbers
  alignas(64) std::uint32_t bits[elu_block];
  alignas(64) float below[elu_block];
  for (std::size_t i = 0; i < elu_block; ++i) bits[i] = static_cast<std::uint32_t>(x[i]) << 16;
  for (std::size_t i = 0; i < elu_block; ++i) {
    const auto negative = static_cast<std::uint32_t>(static_cast<std::int32_t>(bits[i]) >> 31);
    below[i] = std::bit_cast<float>(std::min(bits[i] & negative, lowest));
  }
  for (std::size_t i = 0; i < elu_block; ++i) below[i] = exp_within(below[i]) - 1.0f;
  for (std::size_t i = 0; i < elu_block; ++i) {
    const std::uint32_t rounded = bf16_bits(below[i]) << 16;
    bits[i] = bits[i] - small <= infinite - small ? rounded : bits[i];
  }
  for (std::size_t i = 0; i < elu_block; ++i) x[i] = static_cast<std::uint16_t>(bits[i] >> 16);
}

FASTRL_CLONES
void elu_bf16(std::uint16_t* x, std::size_t count) {
  const std::size_t whole = count / elu_block * elu_block;
  for (std::size_t at = 0; at < whole; at += elu_block) elu_of_block(x + at);
  std::uint16_t rest[elu_block] = {};
  std::copy_n(x + whole, count - whole, rest);
  elu_of_block(rest);
  std::copy_n(rest, count - whole, x + whole);
}

}  // namespace fastrl
