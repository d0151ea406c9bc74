// Images as environments give them (uint8, a plane per channel) to what a convolution reads
// (normalised, channels last), in one pass: each pixel is read and written once.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

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

struct Images {
  const std::uint8_t* rows;
  const std::int64_t* index;  // rows to take, in this order
  std::size_t count, channels, pixels;
  const float* mean;  // nullptr: pixels as they are
  const float* scale;
  float clip;
};

FASTRL_CLONES
void images_to_bf16(const Images& images, std::uint16_t* out) {
  const std::size_t size = images.channels * images.pixels;
  for (std::size_t n = 0; n < images.count; ++n)
    channels_last(images.rows + static_cast<std::size_t>(images.index[n]) * size, images.channels,
                  images.pixels, images.mean, images.scale, images.clip, out + n * size);
}

FASTRL_CLONES
void images_to_f32(const Images& images, float* out) {
  const std::size_t size = images.channels * images.pixels;
  for (std::size_t n = 0; n < images.count; ++n)
    channels_last(images.rows + static_cast<std::size_t>(images.index[n]) * size, images.channels,
                  images.pixels, images.mean, images.scale, images.clip, out + n * size);
}

}  // namespace fastrl
