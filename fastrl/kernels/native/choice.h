// One choice among n for many rows: from log-probabilities to an action in one pass.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "clones.h"
#include "exponential.h"

namespace fastrl {

constexpr std::size_t choice_block = 256;
constexpr std::size_t most_choices = 64;

// log_p [n, N] with rows `stride` apart, u [N] in (0, 1) -> action [N], its log-probability [N].
//
// The action is the last k of positive probability with p_0 + ... + p_{k-1} <= u · sum p: one that
// has a probability always, whatever rounding does, and whatever -inf there is in log_p.
FASTRL_CLONES
void choose(const float* log_p, std::size_t stride, std::size_t n, std::size_t count,
            const float* u, std::int32_t* action, float* log_prob) {
  alignas(64) float total[choice_block], threshold[choice_block], before[choice_block],
      chosen[choice_block];
  alignas(64) std::int32_t index[choice_block];
  alignas(64) float p[most_choices][choice_block];
  for (std::size_t at = 0; at < count; at += choice_block) {
    const std::size_t size = std::min(choice_block, count - at);
    const float* l = log_p + at;
    for (std::size_t i = 0; i < size; ++i) total[i] = 0.0f;
    for (std::size_t k = 0; k < n; ++k)
      for (std::size_t i = 0; i < size; ++i) {
        p[k][i] = exp_of_negative(l[k * stride + i]);
        total[i] += p[k][i];
      }
    for (std::size_t i = 0; i < size; ++i) {
      threshold[i] = u[at + i] * total[i];
      before[i] = p[0][i];
      chosen[i] = l[i];
      index[i] = 0;
    }
    for (std::size_t k = 1; k < n; ++k)
      for (std::size_t i = 0; i < size; ++i) {
        const bool take = (before[i] <= threshold[i]) & (p[k][i] > 0.0f);
        index[i] = take ? static_cast<std::int32_t>(k) : index[i];
        chosen[i] = take ? l[k * stride + i] : chosen[i];
        before[i] += p[k][i];
      }
    for (std::size_t i = 0; i < size; ++i) {
      action[at + i] = index[i];
      log_prob[at + i] = chosen[i];
    }
  }
}

}  // namespace fastrl
