// Single-producer single-consumer rings of 64-bit words in shared memory.
//
//   Producer ──▶ ring 0 ──▶ Consumer A          one Producer object per producing process,
//            └─▶ ring 1 ──▶ Consumer B          one Consumer object per consuming process;
//                           (one doorbell each)  each used by one thread
//
// Guarantees
//   - Words of one ring arrive in order, each once.
//   - No operation waits for another process: one that is killed at any instruction blocks nobody,
//     and what it had not yet published was never there. Its replacement makes a new object, which
//     goes on from the indices in shared memory.
//   - What a pop takes stays in its ring until the pop returns: an exception (Closed, or a signal
//     handler's) loses no word. The price is that a ring's capacity bounds what a lingering pop can
//     collect from it.
//   - All-zero memory is an empty ring.
//
// The indices count words since the beginning and never wrap in practice (2^64). Each has its own
// cache line, and each side keeps the other's last known index to itself, so that a producer reads
// the consumer's line once per lap and not once per word.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "doorbell.h"

namespace fastrl {

using Index = std::atomic<std::uint64_t>;

// The shared part: this header, then `capacity` words (a power of two).
struct Ring {
  alignas(cache_line) Index tail;  // words pushed; written by the producer
  alignas(cache_line) Index head;  // words popped; written by the consumer

  // Plain memory: a word is written before the tail that covers it and read after it.
  std::uint64_t* words() { return reinterpret_cast<std::uint64_t*>(this + 1); }

  static constexpr std::size_t bytes(std::size_t capacity) {
    return sizeof(Ring) + capacity * sizeof(std::uint64_t);
  }
};

static_assert(sizeof(Ring) == 2 * cache_line);

// The region that holds a ring, and its capacity, which is not stored: zeroes must be valid.
struct RingPlace {
  Ring* ring;
  std::size_t capacity;
};

class RingProducer {
 public:
  // Ring i is consumed by the owner of doorbells[i]; the same doorbell may be there several times.
  RingProducer(const std::vector<RingPlace>& rings, const std::vector<Doorbell*>& doorbells) {
    for (std::size_t i = 0; i < rings.size(); ++i) {
      auto bell = std::find_if(bells_.begin(), bells_.end(),
                               [&](const Bell& known) { return known.doorbell == doorbells[i]; });
      if (bell == bells_.end()) bell = bells_.insert(bell, {doorbells[i], 0});
      const auto bell_index = static_cast<std::size_t>(bell - bells_.begin());
      // acquire: the head says which words the consumer has finished reading. Our own tail was
      // last written by this process or by one that is dead.
      const std::uint64_t tail = rings[i].ring->tail.load(std::memory_order_acquire);
      const std::uint64_t head = rings[i].ring->head.load(std::memory_order_acquire);
      lanes_.push_back({rings[i].ring, rings[i].capacity, bell_index, tail, tail, head});
    }
  }

  std::size_t size() const { return lanes_.size(); }

  // System calls made to wake a consumer.
  std::uint64_t wakes() const { return wakes_; }

  // False if the ring is full.
  bool push(std::size_t ring, std::uint64_t word) {
    Lane& lane = lanes_[ring];
    Doorbell* doorbell = bells_[lane.bell].doorbell;
    if (doorbell->is_closed()) throw Closed();
    if (!place(lane, word)) return false;
    publish(lane);
    wakes_ += doorbell->ring(1);
    return true;
  }

  // Pushes in order up to the first full ring; returns how many. Nothing is visible before all are
  // placed; then each ring is published once and each doorbell rung once.
  std::size_t push_many(const std::uint32_t* rings, const std::uint64_t* words, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i) {
      if (bells_[lanes_[rings[i]].bell].doorbell->is_closed()) throw Closed();
    }
    std::size_t placed = 0;
    while (placed < n && place(lanes_[rings[placed]], words[placed])) ++placed;
    for (std::size_t i = 0; i < placed; ++i) {
      Lane& lane = lanes_[rings[i]];
      bells_[lane.bell].unrung += static_cast<std::uint32_t>(lane.tail - lane.published);
      publish(lane);
    }
    for (std::size_t i = 0; i < placed; ++i) {
      Bell& bell = bells_[lanes_[rings[i]].bell];
      if (bell.unrung == 0) continue;
      wakes_ += bell.doorbell->ring(bell.unrung);
      bell.unrung = 0;
    }
    return placed;
  }

 private:
  struct Bell {
    Doorbell* doorbell;
    std::uint32_t unrung;  // words published by the running push_many and not yet announced
  };
  struct Lane {
    Ring* ring;
    std::size_t capacity;
    std::size_t bell;
    std::uint64_t tail;       // words placed
    std::uint64_t published;  // what the shared tail says
    std::uint64_t head;       // what the shared head said when last read
  };

  static bool place(Lane& lane, std::uint64_t word) {
    if (lane.tail - lane.head == lane.capacity) {
      // acquire: the consumer's reads of the freed words are done before we overwrite them.
      lane.head = lane.ring->head.load(std::memory_order_acquire);
      if (lane.tail - lane.head == lane.capacity) return false;
    }
    lane.ring->words()[lane.tail & (lane.capacity - 1)] = word;
    ++lane.tail;
    return true;
  }

  static void publish(Lane& lane) {
    if (lane.published == lane.tail) return;
    // Releases the words; seq_cst, since it must also come before the look at `asleep`.
    lane.ring->tail.store(lane.tail, std::memory_order_seq_cst);
    lane.published = lane.tail;
  }

  std::vector<Lane> lanes_;
  std::vector<Bell> bells_;
  std::uint64_t wakes_ = 0;
};

// What a consumer asks of the program around it while it waits.
struct NoHost {
  void before_wait() {}  // called before the first moment of waiting; may be called again
  void interrupted() {}  // a signal came, or may have come; may throw
};

class RingConsumer {
 public:
  RingConsumer(const std::vector<RingPlace>& rings, Doorbell* doorbell, std::int64_t spin_ns)
      : doorbell_(doorbell), spin_ns_(spin_ns) {
    for (const RingPlace& place : rings) {
      // acquire: last written by this process or by one that is dead.
      const std::uint64_t head = place.ring->head.load(std::memory_order_acquire);
      lanes_.push_back({place.ring, place.capacity, head, head});
    }
  }

  // Times that this consumer went to sleep.
  std::uint64_t sleeps() const { return sleeps_; }

  // Times that a sleep ended only because its time was over although what it waited for was there:
  // lost wake-ups. Not 0 only after a producer was killed between its word and the bell.
  std::uint64_t rescues() const { return rescues_; }

  // Waits up to timeout_ns for a first word, then until there are `at_least` or linger_ns have
  // passed since the first. Takes at most n; words[i] came from ring sources[i]. 0: timed out.
  template <class Host>
  std::size_t pop_many(std::uint64_t* words, std::uint32_t* sources, std::size_t n,
                       std::int64_t timeout_ns, std::size_t at_least, std::int64_t linger_ns,
                       Host&& host) {
    Taking taking{words, sources, n, 0};
    at_least = std::max<std::size_t>(1, std::min(at_least, n));
    try {
      wait(taking, timeout_ns, at_least, linger_ns, host);
    } catch (...) {
      for (Lane& lane : lanes_) lane.head = lane.published;
      throw;
    }
    for (Lane& lane : lanes_) {
      if (lane.head == lane.published) continue;
      // release: our reads of these words come before the producer overwrites them. It never
      // sleeps on a full ring, so no stronger order is needed.
      lane.ring->head.store(lane.head, std::memory_order_release);
      lane.published = lane.head;
    }
    return taking.count;
  }

 private:
  struct Lane {
    Ring* ring;
    std::size_t capacity;
    std::uint64_t head;       // words taken
    std::uint64_t published;  // what the shared head says
  };
  struct Taking {
    std::uint64_t* words;
    std::uint32_t* sources;
    std::size_t limit;
    std::size_t count;
  };

  template <class Host>
  void wait(Taking& taking, std::int64_t timeout_ns, std::size_t at_least, std::int64_t linger_ns,
            Host& host) {
    if (doorbell_->is_closed()) throw Closed();
    scan(taking);
    if (taking.count >= at_least) return;
    std::int64_t now = monotonic_ns();
    const std::int64_t spin_until = now + spin_ns_;
    bool lingering = taking.count > 0;
    std::int64_t deadline = now + (lingering ? linger_ns : timeout_ns);

    while (now < deadline) {
      host.before_wait();
      const std::size_t needed = lingering ? at_least - taking.count : 1;
      std::size_t found = 0;
      if (now < spin_until) {
        pause();
        found = scan(taking);
      } else {
        const std::uint32_t seen = doorbell_->announce_sleep(static_cast<std::uint32_t>(needed));
        found = scan(taking);
        if (found == 0 && !doorbell_->is_closed()) {
          ++sleeps_;
          const auto wake = doorbell_->sleep(seen, std::min(deadline - now, rescan_ns));
          doorbell_->announce_awake();
          if (wake != Doorbell::Wake::rung) host.interrupted();
          found = scan(taking);
          rescues_ += wake == Doorbell::Wake::timed_out && found >= needed;
        } else {
          doorbell_->announce_awake();
        }
      }
      if (doorbell_->is_closed()) throw Closed();
      if (taking.count >= at_least) return;
      now = monotonic_ns();
      if (found > 0 && !lingering) {
        lingering = true;
        deadline = now + linger_ns;
      }
    }
  }

  // Takes what is there, one pass at most. Starts where the last scan ended, so that with more
  // words than room each ring gets its turn.
  std::size_t scan(Taking& taking) {
    const std::size_t before = taking.count;
    for (std::size_t visited = 0; visited < lanes_.size(); ++visited) {
      if (taking.count == taking.limit) break;
      Lane& lane = lanes_[next_];
      // Acquires the words; seq_cst, since the look before a sleep must come after `asleep`.
      const std::uint64_t tail = lane.ring->tail.load(std::memory_order_seq_cst);
      while (lane.head != tail && taking.count < taking.limit) {
        taking.words[taking.count] = lane.ring->words()[lane.head & (lane.capacity - 1)];
        taking.sources[taking.count] = static_cast<std::uint32_t>(next_);
        ++lane.head;
        ++taking.count;
      }
      next_ = next_ + 1 == lanes_.size() ? 0 : next_ + 1;
    }
    return taking.count - before;
  }

  static void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }

  std::vector<Lane> lanes_;
  Doorbell* doorbell_;
  std::int64_t spin_ns_;
  std::size_t next_ = 0;
  std::uint64_t sleeps_ = 0;
  std::uint64_t rescues_ = 0;
};

}  // namespace fastrl
