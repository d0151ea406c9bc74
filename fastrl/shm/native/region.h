// From a numpy array that views shared memory to a pointer that stays valid: what every binding in
// module.cpp checks first. Holding the array keeps its mapping alive.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "doorbell.h"

namespace fastrl {

namespace nb = nanobind;
using RegionArray = nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

[[noreturn]] inline void refuse(const std::string& sentence) {
  throw nb::value_error(sentence.c_str());
}

inline RegionArray region(nb::handle array, const char* of) {
  RegionArray found;
  if (!nb::try_cast(array, found, /* convert = */ false)) {
    refuse(std::string("The region of ") + of + " must be a writable, C-contiguous, " +
           "one-dimensional numpy array of uint8; pass a view from Layout.views.");
  }
  const auto address = reinterpret_cast<std::uintptr_t>(found.data());
  if (address % cache_line != 0) {
    refuse(std::string("The region of ") + of + " must start at a multiple of " +
           std::to_string(cache_line) + " bytes, but starts " +
           std::to_string(address % cache_line) +
           " bytes after one; pass a view from Layout.views.");
  }
  return found;
}

// A region whose size is known.
inline RegionArray region(nb::handle array, const char* of, std::size_t expected) {
  RegionArray found = region(array, of);
  if (found.size() != expected) {
    refuse(std::string("The region of ") + of + " must have " + std::to_string(expected) +
           " bytes, but has " + std::to_string(found.size()) + ".");
  }
  return found;
}

inline bool power_of_two(std::size_t n) { return n > 0 && (n & (n - 1)) == 0; }

inline void check_capacity(std::size_t capacity, const char* of) {
  if (power_of_two(capacity)) return;
  refuse(std::string("The capacity of ") + of + " must be a power of two, but is " +
         std::to_string(capacity) + ".");
}

// The capacity that a region was made for: its size less the header, in units of `unit` bytes.
inline std::size_t capacity_of(const RegionArray& array, const char* of, std::size_t header,
                               std::size_t unit) {
  const std::size_t size = array.size();
  const std::size_t room = size > header ? size - header : 0;
  if (room % unit != 0 || !power_of_two(room / unit)) {
    refuse(std::string("The region of ") + of + " must have " + std::to_string(header) + " + " +
           std::to_string(unit) + " * (a power of two) bytes, but has " + std::to_string(size) +
           ".");
  }
  return room / unit;
}

}  // namespace fastrl
