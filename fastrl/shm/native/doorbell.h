// A doorbell: how one consumer sleeps until any of its producers has something for it.
//
//   producer                              consumer
//   --------                              --------
//   publish the word (ring.h)             b = bell
//   asleep? else done                     asleep = {1, wake_at = b + words still needed}
//   bell += words published               look once more at everything that can be published
//   if bell has reached wake_at:          futex-wait while bell == b
//      claim the sleeper, futex-wake
//
// Either the consumer's last look sees the word, or the producer's look at `asleep`, which comes
// after its word in the one total order of sequentially consistent operations, sees the sleeper.
// And if the bell rings between the consumer's two reads of it (its own and the kernel's), the
// kernel refuses to put it to sleep. So a wake-up cannot be lost, and a consumer that is awake
// (`asleep` is 0) costs its producers a load each: no system call, and no write to a line that they
// share. (The kernel's barriers would excuse a weaker `asleep` on the machines we know. The C++
// memory model knows no kernel, so we do not use that.)
//
// `wake_at` lets a consumer that wants several words sleep through the first ones. The bell counts
// those modulo 2^32 that came while it slept, and sometimes one too many: of a producer that was
// slow to ring for an earlier sleep, which makes this one end early, and the consumer looks and
// sleeps again. It may count too few only where a producer was killed between its word and the
// bell, so nobody sleeps longer than rescan_ns before it looks again.
//
// All-zero memory is a doorbell that nobody waits at. Any number of producers; one consumer.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <exception>

namespace fastrl {

inline constexpr std::size_t cache_line = 64;

// Thrown by every operation on a closed doorbell, also in a consumer that was asleep.
struct Closed : std::exception {
  const char* what() const noexcept override { return "The doorbell is closed."; }
};

// The longest sleep before a consumer looks at its rings unasked.
inline constexpr std::int64_t rescan_ns = 1'000'000'000;

inline std::int64_t monotonic_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

struct Doorbell {
  using Word = std::atomic<std::uint32_t>;
  static_assert(Word::is_always_lock_free && sizeof(Word) == 4, "the kernel reads it as a futex");
  static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

  enum class Wake { rung, interrupted, timed_out };

  // A producer has the first line to itself when it rings: `asleep` comes with `bell`.
  alignas(cache_line) Word bell;
  std::atomic<std::uint64_t> asleep;  // 0: awake; else 1 << 32 | wake_at

  // Read by all before every operation and written once, so it must not share the bell's line.
  alignas(cache_line) Word closed;

  // Producer: announces `words` that are already published. True if that took a system call.
  bool ring(std::uint32_t words) {
    // seq_cst: after the index store before it, in the order all agree on. Pairs with the store in
    // announce_sleep: one of the two sides sees the other.
    if (asleep.load(std::memory_order_seq_cst) == 0) return false;
    // seq_cst: before the load below. Of several producers the last to ring sees all their words.
    const std::uint32_t rung = bell.fetch_add(words, std::memory_order_seq_cst) + words;
    // seq_cst: as above. Once more, since this may be another sleep by now, with its own wake_at.
    std::uint64_t sleeper = asleep.load(std::memory_order_seq_cst);
    if (sleeper == 0) return false;
    if (static_cast<std::int32_t>(rung - static_cast<std::uint32_t>(sleeper)) < 0) return false;
    // One of several producers makes the call. If it is killed before that, rescan_ns bounds the
    // delay. relaxed: the claim is a tie-break and publishes nothing.
    if (!asleep.compare_exchange_strong(sleeper, 0, std::memory_order_relaxed)) return false;
    futex_wake(1);
    return true;
  }

  // Consumer: says that it will sleep until `needed` more words are announced, and returns the
  // value to sleep on. The caller looks at all its rings and at `closed` between this and sleep().
  std::uint32_t announce_sleep(std::uint32_t needed) {
    // seq_cst: before the store below. Every word that the caller's last look then misses was
    // published after this load, so it is among those that wake_at counts.
    const std::uint32_t seen = bell.load(std::memory_order_seq_cst);
    // seq_cst: before the caller's last look. A release store could pass the loads that follow it.
    const std::uint32_t wake_at = seen + needed;
    asleep.store(std::uint64_t{1} << 32 | wake_at, std::memory_order_seq_cst);
    return seen;
  }

  // Consumer: withdraws the announcement.
  void announce_awake() {
    // relaxed: a producer that still reads the old value makes one needless call, no more.
    asleep.store(0, std::memory_order_relaxed);
  }

  // Consumer: sleeps while the bell is `seen`, for at most `ns`.
  Wake sleep(std::uint32_t seen, std::int64_t ns) {
    timespec limit{};
    limit.tv_sec = static_cast<std::time_t>(ns / 1'000'000'000);
    limit.tv_nsec = static_cast<long>(ns % 1'000'000'000);
    // Not FUTEX_PRIVATE: the waker is another process. The kernel compares under its own lock.
    if (syscall(SYS_futex, &bell, FUTEX_WAIT, seen, &limit, nullptr, 0) == 0) return Wake::rung;
    if (errno == ETIMEDOUT) return Wake::timed_out;
    if (errno == EINTR) return Wake::interrupted;
    return Wake::rung;  // EAGAIN: the bell rang before we slept
  }

  bool is_closed() const {
    // seq_cst: the consumer's last look includes this flag, see close(). A plain load on x86.
    return closed.load(std::memory_order_seq_cst) != 0;
  }

  // Anyone, any number of times.
  void close() {
    // seq_cst, then the bell: a consumer that misses the flag has read the bell before this rings
    // it, so the kernel does not let it sleep on the old value.
    closed.store(1, std::memory_order_seq_cst);
    bell.fetch_add(1, std::memory_order_seq_cst);
    futex_wake(INT_MAX);
  }

 private:
  void futex_wake(int sleepers) {
    syscall(SYS_futex, &bell, FUTEX_WAKE, sleepers, nullptr, nullptr, 0);
  }
};

static_assert(sizeof(Doorbell) == 2 * cache_line);

}  // namespace fastrl
