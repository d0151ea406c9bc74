// Images as environments give them (uint8, a plane per channel) to what a convolution reads
// (normalised, channels last), in one pass: each pixel is read and written once, and once more where
// squares of pixels become channels.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "clones.h"

namespace fastrl {

// The nearest bf16, ties to even, of a finite number.
FASTRL_INLINE std::uint32_t bf16_bits(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
}

constexpr std::size_t pixel_block = 64;

// (pixel - mean) · scale, clamped; or the pixel itself where there are no statistics.
FASTRL_INLINE void normalised(const std::uint8_t* plane, const float* mean, const float* scale,
                              float clip, float* out) {
  if (mean == nullptr) {
    for (std::size_t i = 0; i < pixel_block; ++i) out[i] = plane[i];
    return;
  }
  for (std::size_t i = 0; i < pixel_block; ++i) {
    const float value = (static_cast<float>(plane[i]) - mean[i]) * scale[i];
    const float above = value > -clip ? value : -clip;
    out[i] = above < clip ? above : clip;
  }
}

FASTRL_INLINE void store(const float (*block)[pixel_block], std::size_t channels, std::size_t count,
                         float* out) {
  if (channels == 4 && count == pixel_block) {
    for (std::size_t i = 0; i < pixel_block; ++i) {
      out[4 * i] = block[0][i];
      out[4 * i + 1] = block[1][i];
      out[4 * i + 2] = block[2][i];
      out[4 * i + 3] = block[3][i];
    }
    return;
  }
  for (std::size_t i = 0; i < count; ++i)
    for (std::size_t c = 0; c < channels; ++c) out[i * channels + c] = block[c][i];
}

FASTRL_INLINE void store(const float (*block)[pixel_block], std::size_t channels, std::size_t count,
                         std::uint16_t* out) {
  if (channels == 4 && count == pixel_block) {
    // Two pixels' worth of a channel pair at a time: plain words instead of single halves.
    auto* words = reinterpret_cast<std::uint32_t*>(out);
    for (std::size_t i = 0; i < pixel_block; ++i) {
      words[2 * i] = bf16_bits(block[0][i]) | bf16_bits(block[1][i]) << 16;
      words[2 * i + 1] = bf16_bits(block[2][i]) | bf16_bits(block[3][i]) << 16;
    }
    return;
  }
  for (std::size_t i = 0; i < count; ++i)
    for (std::size_t c = 0; c < channels; ++c)
      out[i * channels + c] = static_cast<std::uint16_t>(bf16_bits(block[c][i]));
}

constexpr std::size_t most_channels = 64;

// One image: planes [C, pixels] of `in` to [pixels, C] of `out`; statistics are planes as well.
template <class Out>
FASTRL_INLINE void channels_last(const std::uint8_t* in, std::size_t channels, std::size_t pixels,
                                 const float* mean, const float* scale, float clip, Out* out) {
  alignas(64) float block[most_channels][pixel_block];
  alignas(64) std::uint8_t rest[pixel_block] = {};
  alignas(64) float rest_mean[pixel_block] = {}, rest_scale[pixel_block] = {};
  for (std::size_t at = 0; at < pixels; at += pixel_block) {
    const std::size_t count = std::min(pixel_block, pixels - at);
    for (std::size_t c = 0; c < channels; ++c) {
      const std::uint8_t* plane = in + c * pixels + at;
      const float* m = mean == nullptr ? nullptr : mean + c * pixels + at;
      const float* s = mean == nullptr ? nullptr : scale + c * pixels + at;
      if (count < pixel_block) {
        std::copy_n(plane, count, rest);
        plane = rest;
        if (mean != nullptr) {
          std::copy_n(m, count, rest_mean);
          std::copy_n(s, count, rest_scale);
          m = rest_mean;
          s = rest_scale;
        }
      }
      normalised(plane, m, s, clip, block[c]);
    }
    store(block, channels, count, out + at * channels);
  }
}

// [H, W, C] of `in` to [H / side, W / side, side, side, C] of `out`: the pixels of a square lie
// together. What is left over at the lower and right edges is left out.
template <class Out>
FASTRL_INLINE void in_squares(const Out* in, std::size_t height, std::size_t width,
                              std::size_t channels, std::size_t side, Out* out) {
  const std::size_t run = side * channels, across = width / side;
  for (std::size_t y = 0; y < height / side * side; ++y) {
    const Out* from = in + y * width * channels;
    Out* to = out + (y / side * across * side + y % side) * run;
    if (run == 16) {
      for (std::size_t x = 0; x < across; ++x, from += 16, to += 16 * side)
        for (std::size_t i = 0; i < 16; ++i) to[i] = from[i];
    } else {
      for (std::size_t x = 0; x < across; ++x, from += run, to += run * side)
        std::copy_n(from, run, to);
    }
  }
}

struct Images {
  const std::uint8_t* rows;
  const std::int64_t* index;  // rows to take, in this order
  std::size_t count, channels, height, width;
  std::size_t side;  // of the squares that become one pixel each; 1: none do
  const float* mean;  // nullptr: pixels as they are
  const float* scale;
  float clip;
};

template <class Out>
FASTRL_INLINE void convert(const Images& images, Out* out) {
  const std::size_t pixels = images.height * images.width, size = images.channels * pixels;
  const std::size_t side = images.side;
  const std::size_t size_out =
      (images.height / side) * (images.width / side) * side * side * images.channels;
  std::vector<Out> whole(side > 1 ? size : 0);
  for (std::size_t n = 0; n < images.count; ++n) {
    Out* const to = side > 1 ? whole.data() : out + n * size;
    channels_last(images.rows + static_cast<std::size_t>(images.index[n]) * size, images.channels,
                  pixels, images.mean, images.scale, images.clip, to);
    if (side > 1)
      in_squares(to, images.height, images.width, images.channels, side, out + n * size_out);
  }
}

FASTRL_CLONES
void images_to_bf16(const Images& images, std::uint16_t* out) { convert(images, out); }

FASTRL_CLONES
void images_to_f32(const Images& images, float* out) { convert(images, out); }

}  // namespace fastrl
