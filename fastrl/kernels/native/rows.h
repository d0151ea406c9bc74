// What follows a step of a group in every environment: the learner's reward, the next row's
// `ignored`, and the running episodes, in one pass over the row.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "clones.h"

namespace fastrl {

enum class Clip { off, sign, limit };

// One row of E environments.
struct Row {
  std::size_t size;
  const float* reward;        // raw
  const bool* terminated;
  const bool* truncated;
  const bool* episode_over;
  const bool* ignored;        // of this row
  bool* next_ignored;         // of the next one
  float* stored_reward;       // what the learner sees
  double* returns;            // of the running episodes
  std::int64_t* lengths;
};

struct RowFacts {
  bool finite = true;         // every reward
  bool terminated = false;    // any
  bool over = false;          // any
  std::int64_t valid = 0;     // rows that had effect
};

FASTRL_INLINE float learners_reward(float raw, float scale, Clip clip, float limit) {
  const float value = raw * scale;
  if (clip == Clip::sign) return value > 0.0f ? 1.0f : value < 0.0f ? -1.0f : 0.0f;
  if (clip == Clip::limit) {
    const float above = value > -limit ? value : -limit;
    return above < limit ? above : limit;
  }
  return value;
}

template <Clip clip>
FASTRL_INLINE RowFacts finish(const Row& row, float scale, float limit) {
  float checked = 0.0f;  // 0 · x is 0 for a finite x, else NaN
  unsigned terminated = 0, over = 0;
  std::int64_t valid = 0;
  for (std::size_t i = 0; i < row.size; ++i) {
    const float raw = row.reward[i];
    checked += 0.0f * raw;
    row.stored_reward[i] = learners_reward(raw, scale, clip, limit);
    row.next_ignored[i] = row.terminated[i] | row.truncated[i];
    terminated |= row.terminated[i];
    over |= row.episode_over[i];
    const bool counts = !row.ignored[i];
    row.returns[i] += static_cast<double>(raw);
    row.lengths[i] += counts;
    valid += counts;
  }
  return {checked == 0.0f, terminated != 0, over != 0, valid};
}

FASTRL_CLONES
RowFacts finish_row(const Row& row, float scale, Clip clip, float limit) {
  if (clip == Clip::sign) return finish<Clip::sign>(row, scale, limit);
  if (clip == Clip::limit) return finish<Clip::limit>(row, scale, limit);
  return finish<Clip::off>(row, scale, limit);
}

}  // namespace fastrl
