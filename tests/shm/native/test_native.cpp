// The primitives under threads, for ThreadSanitizer, and under killed processes, for a plain build.
//
//   test_native threads <sleeps>   what threads do to each other
//   test_native kills <kills>      what a death at any instruction does to the others
//
// Prints one line per test; exits with 1 at the first broken invariant. Nothing here sleeps to get
// its timing right: a lost wake-up shows in rescues(), however long the machine stalls us.
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "byte_ring.h"
#include "counters.h"
#include "doorbell.h"
#include "ring.h"
#include "weights.h"

using namespace fastrl;

namespace {

constexpr std::int64_t second = 1'000'000'000;
constexpr std::int64_t hang = 120 * second;

void expect(bool holds, const char* what) {
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

RingPlace new_ring(std::size_t capacity) {
  return {shared<Ring>(Ring::bytes(capacity)), capacity};
}

// A short, irregular delay, so that the two sides meet at ever other instructions.
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
  std::printf("needless_wakes: none\n");
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

std::vector<std::uint8_t> record_of(std::uint64_t serial) {
  std::vector<std::uint8_t> record(8 + serial % 61, static_cast<std::uint8_t>(serial));
  std::memcpy(record.data(), &serial, 8);
  return record;
}

void expect_record(const std::vector<std::uint8_t>& record, std::uint64_t serial) {
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

constexpr std::size_t num_floats = 1003;  // odd, and longer than what a store buffer holds

std::vector<float> weights_of(std::uint64_t version) {
  return std::vector<float>(num_floats, static_cast<float>(version % 4096));
}

void expect_whole(const std::vector<float>& values, std::uint64_t version) {
  for (float value : values) {
    expect(value == static_cast<float>(version % 4096), "a version is read whole");
  }
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

template <class Body>
pid_t start(Body&& body) {
  const pid_t child = fork();
  expect(child >= 0, "fork");
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // a failing test leaves nothing behind
    body();
    std::_Exit(0);
  }
  return child;
}

void kill_and_reap(pid_t child) {
  kill(child, SIGKILL);
  int status = 0;
  expect(waitpid(child, &status, 0) == child, "waitpid");
  expect(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "the child broke no invariant");
}

// A word names the life of the producer that pushed it and its number within that life.
std::uint64_t word_of(std::uint64_t life, std::uint64_t serial) { return life << 40 | serial; }

// Checks that what comes from each life in turn is 0, 1, 2, ...: a prefix of what it pushed.
class Lives {
 public:
  void see(std::uint64_t life, std::uint64_t serial) {
    if (life != life_) {
      expect(life == life_ + 1, "the lives come in order");
      life_ = life;
      next_ = 0;
    }
    expect(serial == next_++, "each life's words are a prefix: no gap, none twice");
  }
  std::uint64_t seen_of(std::uint64_t life) const { return life == life_ ? next_ : 0; }

 private:
  std::uint64_t life_ = 0;
  std::uint64_t next_ = 0;
};

void producers_die(std::uint64_t kills) {
  const RingPlace ring = new_ring(4096);  // room enough that few are killed at a full ring
  auto* bell = shared<Doorbell>();
  Popper pop({ring}, bell);
  Jitter jitter(5);
  Lives lives;
  std::uint64_t total = 0;
  for (std::uint64_t life = 1; life <= kills; ++life) {
    const pid_t child = start([&] {
      RingProducer producer({ring}, {bell});
      for (std::uint64_t serial = 0;;) serial += producer.push(0, word_of(life, serial));
    });
    const auto take = [&](std::int64_t timeout) {
      const std::size_t n = pop(timeout);
      for (std::size_t i = 0; i < n; ++i) {
        lives.see(pop.words[i] >> 40, pop.words[i] & ((std::uint64_t{1} << 40) - 1));
      }
      total += n;
      return n;
    };
    while (lives.seen_of(life) < 1 + life % 100) expect(take(hang) > 0, "the new one is heard");
    jitter(20'000);
    kill_and_reap(child);
    while (take(0) > 0) {
    }
  }
  std::printf("producers_die: %llu kills, %llu words\n", static_cast<unsigned long long>(kills),
              static_cast<unsigned long long>(total));
}

// What a consumer had taken when it was killed is known to it alone, so the words that the next
// one sees may begin again where an unfinished pop began, or after it; never earlier, never later
// than one pop, and in order from there.
void consumers_die(std::uint64_t kills) {
  const RingPlace ring = new_ring(64);
  auto* bell = shared<Doorbell>();
  auto* confirmed = shared<std::atomic<std::uint64_t>>();
  RingProducer producer({ring}, {bell});
  Jitter jitter(6);
  std::uint64_t serial = 0;
  for (std::uint64_t life = 1; life <= kills; ++life) {
    const std::uint64_t before = confirmed->load();
    const pid_t child = start([&] {
      Popper pop({ring}, bell);
      std::uint64_t next = 0;
      for (bool first = true;; first = false) {
        const std::size_t n = pop(hang);
        const std::uint64_t known = confirmed->load();
        if (first) next = pop.words[0];
        expect(next >= known && next <= known + 64, "at most one pop is lost, none comes twice");
        for (std::size_t i = 0; i < n; ++i) expect(pop.words[i] == next++, "words in order");
        confirmed->store(next);
      }
    });
    while (confirmed->load() <= before + 64) {
      if (producer.push(0, serial)) {
        ++serial;
      } else {
        std::this_thread::yield();
      }
    }
    jitter(20'000);
    kill_and_reap(child);
  }
  std::printf("consumers_die: %llu kills, %llu words\n", static_cast<unsigned long long>(kills),
              static_cast<unsigned long long>(serial));
}

void reporters_die(std::uint64_t kills) {
  constexpr std::size_t capacity = 1 << 16;
  auto* ring = shared<ByteRing>(ByteRing::bytes(capacity));
  Jitter jitter(7);
  Lives lives;
  for (std::uint64_t life = 1; life <= kills; ++life) {
    const pid_t child = start([&] {
      for (std::uint64_t serial = 0;;) {
        const auto record = record_of(word_of(life, serial));
        serial += ring->push(capacity, record.data(), record.size());
      }
    });
    const auto take = [&] {
      take_records(ring, capacity, [&](const auto& record) {
        std::uint64_t word = 0;
        std::memcpy(&word, record.data(), 8);
        expect_record(record, word);
        lives.see(word >> 40, word & ((std::uint64_t{1} << 40) - 1));
      });
    };
    while (lives.seen_of(life) == 0) {
      std::this_thread::yield();
      take();
    }
    jitter(20'000);
    kill_and_reap(child);
    take();
  }
  std::printf("reporters_die: %llu kills\n", static_cast<unsigned long long>(kills));
}

void writers_die(std::uint64_t kills) {
  auto* shared_weights = shared<Weights>(Weights::bytes(num_floats));
  Jitter jitter(8);
  std::vector<float> values(num_floats);
  std::uint64_t unfinished = 0;
  for (std::uint64_t life = 1; life <= kills; ++life) {
    const std::uint64_t before = shared_weights->current();
    const pid_t child = start([&] {
      for (std::uint64_t version = before + 1;; ++version) {
        expect(shared_weights->publish(weights_of(version).data(), num_floats) == version,
               "a replacement goes on from the newest version");
      }
    });
    while (shared_weights->current() == before) std::this_thread::yield();
    jitter(20'000);
    kill_and_reap(child);
    const std::uint64_t version = shared_weights->read(values.data(), num_floats);
    expect(version == shared_weights->current(), "a dead writer makes nobody retry");
    expect_whole(values, version);
    unfinished += shared_weights->begun.load() != version;
  }
  expect(unfinished > 0, "some were killed in the middle, or this test proves nothing");
  std::printf("writers_die: %llu kills, %llu in the middle\n",
              static_cast<unsigned long long>(kills), static_cast<unsigned long long>(unfinished));
}

}  // namespace

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // a forked child inherits no unwritten lines
  if (argc != 3) {
    std::fprintf(stderr, "usage: test_native threads|kills <count>\n");
    return 2;
  }
  const std::uint64_t count = std::strtoull(argv[2], nullptr, 10);
  if (std::string(argv[1]) == "threads") {
    needless_wakes();
    bell_wraps();
    ping_pong(count);
    storm(count / 4);
    closing(static_cast<unsigned>(count / 100));
    byte_ring(count);
    weights(count / 100);
    counters(static_cast<std::int64_t>(count / 10));
  } else {
    producers_die(count);
    consumers_die(count);
    reporters_die(count);
    writers_die(count);
  }
  return 0;
}
