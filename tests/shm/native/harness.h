// What the two native test programs share. Each prints one line per test and exits with 1 at the
// first broken invariant. Nothing sleeps to get its timing right: a lost wake-up shows in rescues(),
// however long the machine stalls us.
#pragma once

#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "byte_ring.h"
#include "doorbell.h"
#include "ring.h"
#include "weights.h"

namespace fastrl {

inline constexpr std::int64_t second = 1'000'000'000;
inline constexpr std::int64_t hang = 120 * second;

inline void expect(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "broken: %s\n", what);
  std::_Exit(1);
}

// Shared with forked processes; zero; never freed, since the test program ends soon.
template <class T>
T* shared(std::size_t bytes = sizeof(T)) {
  void* memory =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  expect(memory != MAP_FAILED, "mmap");
  return static_cast<T*>(memory);
}

inline RingPlace new_ring(std::size_t capacity) {
  return {shared<Ring>(Ring::bytes(capacity)), capacity};
}

// A short, irregular delay, so that the two sides meet at different instructions each time.
class Jitter {
 public:
  explicit Jitter(unsigned seed) : random_(seed) {}
  void operator()(unsigned most) {
    for (auto n = random_() % most; n > 0; --n) asm volatile("");  // not optimised away
  }

 private:
  std::minstd_rand random_;
};

struct Popper {
  Popper(const std::vector<RingPlace>& rings, Doorbell* doorbell, std::int64_t spin_ns = 0)
      : consumer(rings, doorbell, spin_ns) {}

  std::size_t operator()(std::int64_t timeout, std::size_t at_least = 1, std::int64_t linger = 0) {
    return consumer.pop_many(words, sources, 64, timeout, at_least, linger, NoHost());
  }

  RingConsumer consumer;
  std::uint64_t words[64];
  std::uint32_t sources[64];
};

inline std::vector<std::uint8_t> record_of(std::uint64_t serial) {
  std::vector<std::uint8_t> record(8 + serial % 61, static_cast<std::uint8_t>(serial));
  std::memcpy(record.data(), &serial, 8);
  return record;
}

inline void expect_record(const std::vector<std::uint8_t>& record, std::uint64_t serial) {
  expect(record == record_of(serial), "records come whole, in order, once");
}

template <class Take>
void take_records(ByteRing* ring, std::size_t capacity, Take&& take) {
  ring->pop_all(capacity, [&](std::size_t length, auto&& copy) {
    std::vector<std::uint8_t> record(length);
    copy(record.data());
    take(record);
  });
}

inline constexpr std::size_t num_floats = 20'001;  // odd, and long enough to be overtaken in

inline std::vector<float> weights_of(std::uint64_t version) {
  return std::vector<float>(num_floats, static_cast<float>(version % 4096));
}

inline void expect_whole(const std::vector<float>& values, std::uint64_t version) {
  for (float value : values) {
    expect(value == static_cast<float>(version % 4096), "a version is read whole");
  }
}

inline std::uint64_t count_argument(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // a forked child inherits no unwritten lines
  if (argc == 2) return std::strtoull(argv[1], nullptr, 10);
  std::fprintf(stderr, "usage: %s <count>\n", argv[0]);
  std::exit(2);
}

}  // namespace fastrl
