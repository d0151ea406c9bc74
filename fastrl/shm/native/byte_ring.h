// A single-producer single-consumer ring of records of any length, for rare messages.
//
// Nobody waits at it: a record that does not fit is dropped and counted, and the consumer polls.
// A process killed at any instruction blocks nobody; its replacement goes on from the shared
// indices, which count bytes since the beginning. All-zero memory is an empty ring.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "doorbell.h"

namespace fastrl {

struct ByteRing {
  alignas(cache_line) std::atomic<std::uint64_t> tail;  // written by the producer
  std::atomic<std::uint64_t> lost;                      // records dropped; written by the producer
  alignas(cache_line) std::atomic<std::uint64_t> head;  // written by the consumer

  using Length = std::uint32_t;  // stands before each record

  static constexpr std::size_t bytes(std::size_t capacity) { return sizeof(ByteRing) + capacity; }

  // Producer. False, and `lost` is one more, if the record does not fit now.
  bool push(std::size_t capacity, const void* record, std::size_t length) {
    // relaxed: only this process writes it.
    const std::uint64_t begin = tail.load(std::memory_order_relaxed);
    // acquire: the consumer has read the freed bytes before we overwrite them.
    const std::uint64_t used = begin - head.load(std::memory_order_acquire);
    if (length > UINT32_MAX || sizeof(Length) + length > capacity - used) {
      // relaxed: a count that orders nothing; this process alone writes it.
      lost.store(lost.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
      return false;
    }
    const auto framed = static_cast<Length>(length);
    write(capacity, begin, &framed, sizeof framed);
    write(capacity, begin + sizeof framed, record, length);
    // release: the record is whole before the consumer can see it.
    tail.store(begin + sizeof framed + length, std::memory_order_release);
    return true;
  }

  // Consumer. Calls receive(length, copy) for each record, oldest first, where copy(destination)
  // copies it; then frees them all at once, or none if `receive` throws.
  template <class Receive>
  void pop_all(std::size_t capacity, Receive&& receive) {
    // relaxed: only this process writes it.
    std::uint64_t at = head.load(std::memory_order_relaxed);
    // acquire: pairs with the release in push; what lies before it is whole.
    const std::uint64_t end = tail.load(std::memory_order_acquire);
    while (at != end) {
      Length length;
      read(capacity, at, &length, sizeof length);
      at += sizeof length;
      receive(std::size_t{length}, [&](void* to) { read(capacity, at, to, length); });
      at += length;
    }
    // release: our reads are done before the producer overwrites these bytes.
    head.store(at, std::memory_order_release);
  }

 private:
  std::uint8_t* storage() { return reinterpret_cast<std::uint8_t*>(this + 1); }

  void write(std::size_t capacity, std::uint64_t at, const void* from, std::size_t length) {
    const std::size_t offset = at & (capacity - 1);
    const std::size_t first = std::min(length, capacity - offset);
    const auto* source = static_cast<const std::uint8_t*>(from);
    if (first > 0) std::memcpy(storage() + offset, source, first);
    if (length > first) std::memcpy(storage(), source + first, length - first);
  }

  void read(std::size_t capacity, std::uint64_t at, void* to, std::size_t length) {
    const std::size_t offset = at & (capacity - 1);
    const std::size_t first = std::min(length, capacity - offset);
    auto* target = static_cast<std::uint8_t*>(to);
    if (first > 0) std::memcpy(target, storage() + offset, first);
    if (length > first) std::memcpy(target + first, storage(), length - first);
  }
};

static_assert(sizeof(ByteRing) == 2 * cache_line);

}  // namespace fastrl
