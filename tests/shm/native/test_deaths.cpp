// test_deaths <kills>: what the death of a process at any instruction does to the others.
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <thread>

#include "harness.h"

using namespace fastrl;

namespace {

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
  const std::uint64_t kills = count_argument(argc, argv);
  producers_die(kills);
  consumers_die(kills);
  reporters_die(kills);
  writers_die(kills);
  return 0;
}
