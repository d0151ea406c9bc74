// One flat float32 buffer, published in versions 1, 2, ... by one writer to any number of readers.
//
// Version v lies in half v mod 2, so a reader of v is in danger only from v + 2 on:
//
//   writer                     reader
//   begun = v + 2              v = version
//   write half v mod 2         copy half v mod 2
//   version = v + 2            begun > v + 1 ? again : done
//
// Why the reader's test suffices. Values are stored with release and loaded with acquire.
//   - By the acquire load of `version`, every load of the copy returns what v stored, or later.
//   - Later means stored by v + 2 or after. Such a store is a release, so whoever acquires it also
//     sees what its writer did before: begun >= v + 2. The reader loads `begun` afterwards (an
//     acquire load is not passed by later loads), so it sees that, and copies again.
// On x86 these orders cost nothing: its plain loads and stores have them. There are no fences, for
// ThreadSanitizer does not model those.
//
// A writer killed anywhere leaves `version` and its half whole. Its replacement goes on from
// `version`: it begins the same version again, in the same half, which nobody reads as yet.
// All-zero memory is: nothing published.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "doorbell.h"

namespace fastrl {

struct Weights {
  using Cell = std::atomic<std::uint64_t>;  // two floats
  static constexpr std::size_t cell_floats = sizeof(Cell) / sizeof(float);

  alignas(cache_line) Cell begun;    // the version whose half may be incomplete
  alignas(cache_line) Cell version;  // the newest complete one; 0: none yet

  static constexpr std::size_t bytes(std::size_t num_floats) {
    return sizeof(Weights) + 2 * half_cells(num_floats) * sizeof(Cell);
  }

  std::uint64_t current() const {
    // acquire: who learns of a version may go on to what was published before it.
    return version.load(std::memory_order_acquire);
  }

  // Writer. Returns the new version.
  std::uint64_t publish(const float* source, std::size_t num_floats) {
    // relaxed: only the writer changes it; a dead predecessor's store is long visible.
    const std::uint64_t next = version.load(std::memory_order_relaxed) + 1;
    // relaxed: the release stores that follow carry it. It is ordered before each of them.
    begun.store(next, std::memory_order_relaxed);
    Cell* cells = half(next, num_floats);
    const std::size_t pairs = num_floats / cell_floats;
    std::uint64_t bits = 0;
    for (std::size_t i = 0; i < pairs; ++i) {
      std::memcpy(&bits, source + i * cell_floats, sizeof bits);
      cells[i].store(bits, std::memory_order_release);  // release: begun comes first
    }
    if (num_floats % cell_floats != 0) {
      bits = 0;
      std::memcpy(&bits, source + pairs * cell_floats, sizeof(float));
      cells[pairs].store(bits, std::memory_order_release);
    }
    // release: the half is whole before its version is known.
    version.store(next, std::memory_order_release);
    return next;
  }

  // Any reader. Returns the version copied, 0 (and the target untouched) if there is none.
  std::uint64_t read(float* target, std::size_t num_floats) {
    for (;;) {
      const std::uint64_t found = current();
      if (found == 0) return 0;
      const Cell* cells = half(found, num_floats);
      const std::size_t pairs = num_floats / cell_floats;
      std::uint64_t bits = 0;
      for (std::size_t i = 0; i < pairs; ++i) {
        bits = cells[i].load(std::memory_order_acquire);  // acquire: before the load of begun
        std::memcpy(target + i * cell_floats, &bits, sizeof bits);
      }
      if (num_floats % cell_floats != 0) {
        bits = cells[pairs].load(std::memory_order_acquire);
        std::memcpy(target + pairs * cell_floats, &bits, sizeof(float));
      }
      // relaxed: what must be seen happened before a store that the copy has acquired.
      if (begun.load(std::memory_order_relaxed) <= found + 1) return found;
    }
  }

 private:
  static constexpr std::size_t half_cells(std::size_t num_floats) {
    constexpr std::size_t line_cells = cache_line / sizeof(Cell);
    const std::size_t cells = (num_floats + cell_floats - 1) / cell_floats;
    return (cells + line_cells - 1) / line_cells * line_cells;
  }

  Cell* half(std::uint64_t of_version, std::size_t num_floats) {
    return reinterpret_cast<Cell*>(this + 1) + (of_version & 1) * half_cells(num_floats);
  }
};

static_assert(sizeof(Weights) == 2 * cache_line);

}  // namespace fastrl
