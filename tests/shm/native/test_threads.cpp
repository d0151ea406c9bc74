// test_threads <sleeps>: what threads do to each other; for ThreadSanitizer and at full speed.
#include <algorithm>
#include <atomic>
#include <csignal>
#include <thread>

#include "counters.h"
#include "harness.h"

using namespace fastrl;

namespace {

// Two threads wake each other until each has slept `sleeps` times. A tenth of the rounds comes in
// twos, for which the other waits with at_least.
void ping_pong(std::uint64_t sleeps) {
  const RingPlace there = new_ring(4), back = new_ring(4);
  auto *bell_a = shared<Doorbell>(), *bell_b = shared<Doorbell>();
  const auto burst = [](std::uint64_t round) { return round % 10 == 0 ? 2U : 1U; };

  std::thread echo([&] {
    Popper pop({there}, bell_b);
    RingProducer producer({back}, {bell_a});
    Jitter jitter(1);
    try {
      for (std::uint64_t round = 0;; ++round) {
        expect(pop(hang, burst(round), hang) == burst(round), "the echo gets the whole burst");
        expect(pop.consumer.rescues() == 0, "no wake-up of the echo is lost");
        jitter(400);
        for (unsigned i = 0; i < burst(round); ++i) expect(producer.push(0, round), "room");
      }
    } catch (const Closed&) {
    }
  });

  Popper pop({back}, bell_a);
  RingProducer producer({there}, {bell_b});
  Jitter jitter(2);
  std::uint64_t round = 0;
  for (; pop.consumer.sleeps() < sleeps && round < 50 * sleeps; ++round) {
    for (unsigned i = 0; i < burst(round); ++i) expect(producer.push(0, round), "room");
    jitter(400);
    expect(pop(hang, burst(round), hang) == burst(round), "the answer comes");
    expect(pop.words[0] == round, "it is the answer to this round");
    expect(pop.consumer.rescues() == 0, "no wake-up is lost");
  }
  expect(pop.consumer.sleeps() >= sleeps, "the test slept as often as it should");
  bell_b->close();
  echo.join();
  std::printf("ping_pong: %llu rounds, %llu sleeps\n", static_cast<unsigned long long>(round),
              static_cast<unsigned long long>(pop.consumer.sleeps()));
}

// Three producers at one doorbell, against a consumer that waits for one word or lingers for
// several, until it has slept `sleeps` times. Small rings, so that they wrap and are full at times.
void storm(std::uint64_t sleeps) {
  constexpr unsigned producers = 3;
  auto* bell = shared<Doorbell>();
  std::vector<RingPlace> rings;
  for (unsigned p = 0; p < producers; ++p) rings.push_back(new_ring(16));
  std::atomic<bool> enough{false};
  std::uint64_t sent[producers] = {};

  std::vector<std::thread> threads;
  for (unsigned p = 0; p < producers; ++p) {
    threads.emplace_back([&, p] {
      RingProducer producer({rings[p]}, {bell});
      Jitter jitter(p + 1);
      const std::uint32_t same[4] = {0, 0, 0, 0};
      std::uint64_t serial = 0;
      while (!enough.load()) {
        const std::uint64_t next[4] = {serial, serial + 1, serial + 2, serial + 3};
        const std::size_t n = 1 + serial % 4;
        const std::size_t pushed =
            n == 1 ? producer.push(0, serial) : producer.push_many(same, next, n);
        serial += pushed;
        if (pushed < n) std::this_thread::yield();
        jitter(20'000);
      }
      sent[p] = serial;
    });
  }

  Popper pop(rings, bell, 1'000);
  std::uint64_t received[producers] = {};
  const auto take = [&](std::int64_t timeout, std::size_t at_least) {
    const std::size_t n = pop(timeout, at_least, timeout);
    for (std::size_t i = 0; i < n; ++i) {
      expect(pop.words[i] == received[pop.sources[i]]++, "each ring's words come in order, once");
    }
    expect(pop.consumer.rescues() == 0, "no wake-up is lost");
    return n;
  };
  for (std::uint64_t call = 0; pop.consumer.sleeps() < sleeps; ++call) {
    const std::size_t at_least = call % 3 == 0 ? 8 : 1;
    expect(take(hang, at_least) >= at_least, "who lingers for ever gets what it asks for");
  }
  enough.store(true);
  for (auto& thread : threads) thread.join();
  while (take(0, 1) > 0) {
  }
  std::uint64_t total = 0;
  for (unsigned p = 0; p < producers; ++p) {
    expect(received[p] == sent[p], "every word arrives");
    total += sent[p];
  }
  std::printf("storm: %llu words, %llu sleeps\n", static_cast<unsigned long long>(total),
              static_cast<unsigned long long>(pop.consumer.sleeps()));
}

// Closing wakes a sleeper at once and for ever.
void closing(unsigned rounds) {
  for (unsigned round = 0; round < rounds; ++round) {
    auto* bell = shared<Doorbell>();
    const RingPlace ring = new_ring(2);
    std::thread closer([&] {
      Jitter(round + 1)(20'000);
      bell->close();
    });
    Popper pop({ring}, bell);
    bool closed = false;
    const std::int64_t begin = monotonic_ns();
    try {
      pop(hang);
    } catch (const Closed&) {
      closed = true;
    }
    expect(closed, "a closed doorbell throws in its consumer");
    // A lost wake-up would last until the rescan; ten of them in a row no stall explains.
    static unsigned late = 0;
    late = monotonic_ns() - begin >= rescan_ns ? late + 1 : 0;
    expect(late < 10, "closing wakes the sleeper");
    closer.join();
  }
  std::printf("closing: %u rounds\n", rounds);
}

// A consumer that is awake costs no system call; one that sleeps is woken once.
void needless_wakes() {
  auto* bell = shared<Doorbell>();
  const RingPlace ring = new_ring(1024);
  RingProducer producer({ring}, {bell});
  for (int i = 0; i < 1000; ++i) producer.push(0, 0);
  expect(producer.wakes() == 0, "nobody sleeps, nobody is woken");

  bell->announce_sleep(3);
  producer.push(0, 0);
  producer.push(0, 0);
  expect(producer.wakes() == 0, "one who waits for three words sleeps through two");
  producer.push(0, 0);
  expect(producer.wakes() == 1, "the third wakes it");
  producer.push(0, 0);
  expect(producer.wakes() == 1, "the fourth need not");

  bell->announce_sleep(3);
  const std::uint32_t same[3] = {0, 0, 0};
  const std::uint64_t words[3] = {0, 0, 0};
  expect(producer.push_many(same, words, 3) == 3, "room");
  expect(producer.wakes() == 2, "a batch rings for all its words");

  Popper pop({ring}, bell);
  while (pop(0) > 0) {
  }
  expect(pop(1000) == 0 && pop.consumer.sleeps() == 1, "it slept in vain");
  producer.push(0, 0);
  expect(producer.wakes() == 2, "and is awake since");
  std::printf("needless_wakes: none\n");
}

// What happens between a consumer's reading of the bell and the kernel's keeps it from sleeping.
void no_sleep_on_an_old_bell() {
  auto* bell = shared<Doorbell>();
  const RingPlace ring = new_ring(4);
  RingProducer producer({ring}, {bell});
  std::uint32_t seen = bell->announce_sleep(2);
  producer.push(0, 0);
  expect(bell->sleep(seen, rescan_ns) == Doorbell::Wake::rung, "a word in between is noticed");
  seen = bell->announce_sleep(1);
  bell->close();
  expect(bell->sleep(seen, rescan_ns) == Doorbell::Wake::rung, "and so is closing");
  std::printf("no_sleep_on_an_old_bell: none\n");
}

// Around 2^32 the bell wraps; wake_at must be compared modulo 2^32.
void bell_wraps() {
  auto* bell = shared<Doorbell>();
  bell->bell.store(UINT32_MAX - 1);
  const RingPlace ring = new_ring(16);
  RingProducer producer({ring}, {bell});
  bell->announce_sleep(4);
  for (int i = 0; i < 3; ++i) producer.push(0, 0);
  expect(producer.wakes() == 0, "three of four words wake nobody");
  producer.push(0, 0);
  expect(producer.wakes() == 1, "the fourth does, on the other side of 2^32");
  std::printf("bell_wraps: yes\n");
}

void byte_ring(std::uint64_t records) {
  constexpr std::size_t capacity = 256;
  auto* ring = shared<ByteRing>(ByteRing::bytes(capacity));
  std::uint64_t refused = 0;
  std::thread producer([&] {
    for (std::uint64_t serial = 0; serial < records;) {
      const auto record = record_of(serial);
      if (ring->push(capacity, record.data(), record.size())) {
        ++serial;
      } else {
        ++refused;
        std::this_thread::yield();
      }
    }
  });
  std::uint64_t next = 0;
  while (next < records) {
    take_records(ring, capacity, [&](const auto& record) { expect_record(record, next++); });
    std::this_thread::yield();
  }
  producer.join();
  expect(ring->lost.load() == refused, "every refusal is counted");
  std::printf("byte_ring: %llu records, %llu refused\n", static_cast<unsigned long long>(records),
              static_cast<unsigned long long>(refused));
}

void weights(std::uint64_t reads) {
  auto* shared_weights = shared<Weights>(Weights::bytes(num_floats));
  std::atomic<bool> enough{false};
  std::thread writer([&] {
    Jitter jitter(3);
    for (std::uint64_t version = 1; !enough.load(); ++version) {
      expect(shared_weights->publish(weights_of(version).data(), num_floats) == version,
             "versions count from 1");
      jitter(3000);
    }
  });
  std::vector<float> values(num_floats);
  std::uint64_t before = 0;
  for (std::uint64_t fresh = 0; fresh < reads;) {
    const std::uint64_t version = shared_weights->read(values.data(), num_floats);
    if (version > 0) expect_whole(values, version);
    expect(version >= before, "versions never fall");
    fresh += version > before;
    if (version == before) std::this_thread::yield();
    before = version;
  }
  enough.store(true);
  writer.join();
  std::printf("weights: %llu versions read of %llu\n", static_cast<unsigned long long>(reads),
              static_cast<unsigned long long>(before));
}

// A reader that is stopped in the middle of its copy, by a page fault, while `publishes` versions
// are published. One leaves its half alone; two overwrite it.
struct Overtaking {
  static constexpr std::size_t floats = 2048;  // two pages, of which the second faults
  static inline Weights* weights;
  static inline float* target;
  static inline std::vector<std::vector<float>> versions;

  static void publish_and_allow(int) {
    for (const auto& version : versions) weights->publish(version.data(), floats);
    mprotect(target, floats * sizeof(float), PROT_READ | PROT_WRITE);
  }

  static std::uint64_t read(unsigned publishes) {
    weights = shared<Weights>(Weights::bytes(floats));
    target = shared<float>(floats * sizeof(float));
    const std::vector<float> first(floats, 1);
    weights->publish(first.data(), floats);
    versions.clear();
    for (unsigned n = 0; n < publishes; ++n) versions.emplace_back(floats, 2.0F + n);

    mprotect(target + floats / 2, floats / 2 * sizeof(float), PROT_READ);
    struct sigaction on_fault = {}, before = {};
    on_fault.sa_handler = publish_and_allow;
    sigaction(SIGSEGV, &on_fault, &before);
    const std::uint64_t version = weights->read(target, floats);
    sigaction(SIGSEGV, &before, nullptr);
    expect(std::all_of(target, target + floats, [&](float v) { return v == version; }),
           "an overtaken copy is whole");
    return version;
  }
};

void overtaken_reads() {
  expect(Overtaking::read(0) == 1, "undisturbed");
  expect(Overtaking::read(1) == 1, "one new version disturbs no reader");
  expect(Overtaking::read(2) == 3, "two make it read again");
  expect(Overtaking::read(3) == 4, "and so do three");
  std::printf("overtaken_reads: whole\n");
}

// A counter's store carries what was written before it.
void counters(std::int64_t rounds) {
  std::int64_t count[1] = {0};
  std::int64_t payload[2] = {0, 0};
  std::int64_t taken[1] = {0};
  std::thread writer([&] {
    Counters filled(count), returned(taken);
    for (std::int64_t n = 1; n <= rounds; ++n) {
      while (n - returned.load(0) > 2) std::this_thread::yield();
      payload[n % 2] = n;
      filled.add(0, 1);
    }
  });
  Counters filled(count), returned(taken);
  for (std::int64_t n = 1; n <= rounds; ++n) {
    while (filled.load(0) < n) std::this_thread::yield();
    expect(payload[n % 2] == n, "a count carries what was written before it");
    returned.store(0, n);
  }
  writer.join();
  std::printf("counters: %lld rounds\n", static_cast<long long>(rounds));
}

}  // namespace

int main(int argc, char** argv) {
  const std::uint64_t count = count_argument(argc, argv);
  needless_wakes();
  no_sleep_on_an_old_bell();
  bell_wraps();
  ping_pong(count);
  storm(count / 4);
  closing(static_cast<unsigned>(count / 100));
  byte_ring(count);
  overtaken_reads();
  weights(count / 100);
  counters(static_cast<std::int64_t>(count / 10));
  return 0;
}
