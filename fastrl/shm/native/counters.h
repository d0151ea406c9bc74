// Plain shared counters with release stores and acquire loads: who reads a count may go on to read
// what was written before it was stored. Each has one writer at a time, so adding is no
// read-modify-write. They lie packed; a writer who minds its neighbours spaces its indices.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace fastrl {

class Counters {
 public:
  // Arrays of int64 are what Python sees as well, hence atomic_ref and not an array of atomics.
  using Cell = std::atomic_ref<std::int64_t>;
  static_assert(Cell::is_always_lock_free);

  explicit Counters(std::int64_t* cells) : cells_(cells) {}

  std::int64_t load(std::size_t i) const {
    // acquire: pairs with the release below.
    return Cell(cells_[i]).load(std::memory_order_acquire);
  }

  void store(std::size_t i, std::int64_t value) {
    // release: what the writer did before is seen by who loads this value.
    Cell(cells_[i]).store(value, std::memory_order_release);
  }

  // For the counter's single writer. Returns the new value.
  std::int64_t add(std::size_t i, std::int64_t delta) {
    // relaxed: our own last store.
    const std::int64_t sum = Cell(cells_[i]).load(std::memory_order_relaxed) + delta;
    store(i, sum);
    return sum;
  }

 private:
  std::int64_t* cells_;
};

}  // namespace fastrl
