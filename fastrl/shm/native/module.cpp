// The Python face of the primitives: checks arguments, keeps arrays alive, lets go of the GIL while
// it waits or copies. No algorithm is here; see doorbell.h, ring.h, byte_ring.h, weights.h and
// counters.h. The signatures and docstrings are repeated for type checkers in _native.pyi.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "byte_ring.h"
#include "counters.h"
#include "doorbell.h"
#include "region.h"
#include "ring.h"
#include "weights.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace fastrl {
namespace {

template <class T>
using Vector = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

constexpr std::size_t word_bytes = sizeof(std::uint64_t);

std::size_t checked(std::int64_t size, const char* what) {
  if (size < 1) refuse(std::string(what) + " must be at least 1, but is " + std::to_string(size) + ".");
  return static_cast<std::size_t>(size);
}

std::size_t ring_bytes(std::int64_t capacity) {
  check_capacity(capacity > 0 ? static_cast<std::size_t>(capacity) : 0, "a ring");
  return Ring::bytes(static_cast<std::size_t>(capacity));
}

std::size_t byte_ring_bytes(std::int64_t capacity) {
  check_capacity(capacity > 0 ? static_cast<std::size_t>(capacity) : 0, "a byte ring");
  return ByteRing::bytes(static_cast<std::size_t>(capacity));
}

std::size_t weights_bytes(std::int64_t num_floats) {
  return Weights::bytes(checked(num_floats, "The number of floats"));
}

std::int64_t nanoseconds(double seconds, const char* what) {
  if (std::isnan(seconds) || seconds < 0) {
    refuse(std::string(what) + " must be 0 or more seconds, but is " + std::to_string(seconds) + ".");
  }
  constexpr double century = 3e9;  // keeps clock + timeout within 64 bits
  return static_cast<std::int64_t>(std::min(seconds, century) * 1e9);
}

RegionArray doorbell_region(nb::handle array) {
  return region(array, "a doorbell", sizeof(Doorbell));
}

Doorbell* as_doorbell(const RegionArray& array) { return reinterpret_cast<Doorbell*>(array.data()); }

// Ends the wait's hold on the GIL at the first moment of waiting, and runs signal handlers.
class Interpreter {
 public:
  ~Interpreter() {
    if (thread_ != nullptr) PyEval_RestoreThread(thread_);
  }
  void before_wait() {
    if (thread_ == nullptr) thread_ = PyEval_SaveThread();
  }
  void interrupted() {
    PyEval_RestoreThread(std::exchange(thread_, nullptr));
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
    before_wait();
  }

 private:
  PyThreadState* thread_ = nullptr;
};

class PyProducer {
 public:
  PyProducer(const nb::sequence& rings, const nb::sequence& doorbells)
      : regions_(), native_(make(rings, doorbells, regions_)) {}

  bool push(std::int64_t ring, std::uint64_t word) {
    if (ring < 0 || static_cast<std::size_t>(ring) >= native_.size()) no_ring(ring);
    return native_.push(static_cast<std::size_t>(ring), word);
  }

  std::size_t push_many(const Vector<const std::uint32_t>& rings,
                        const Vector<const std::uint64_t>& words) {
    if (rings.size() != words.size()) {
      refuse("push_many needs as many rings as words, but got " + std::to_string(rings.size()) +
             " and " + std::to_string(words.size()) + ".");
    }
    for (std::size_t i = 0; i < rings.size(); ++i) {
      if (rings.data()[i] >= native_.size()) no_ring(rings.data()[i]);
    }
    return native_.push_many(rings.data(), words.data(), words.size());
  }

  std::uint64_t wakes() const { return native_.wakes(); }

 private:
  static RingProducer make(const nb::sequence& rings, const nb::sequence& doorbells,
                           std::vector<RegionArray>& regions) {
    std::vector<RingPlace> places;
    std::vector<Doorbell*> bells;
    for (nb::handle array : rings) {
      regions.push_back(region(array, "a ring"));
      places.push_back({reinterpret_cast<Ring*>(regions.back().data()),
                        capacity_of(regions.back(), "a ring", sizeof(Ring), word_bytes)});
    }
    for (nb::handle array : doorbells) {
      regions.push_back(doorbell_region(array));
      bells.push_back(as_doorbell(regions.back()));
    }
    if (places.empty() || places.size() != bells.size()) {
      refuse("A producer needs one doorbell for each of its rings, at least one, but got " +
             std::to_string(places.size()) + " rings and " + std::to_string(bells.size()) +
             " doorbells.");
    }
    return RingProducer(places, bells);
  }

  [[noreturn]] void no_ring(std::int64_t ring) const {
    const std::string sentence = "There is no ring " + std::to_string(ring) +
                                 ": this producer has rings 0 to " +
                                 std::to_string(native_.size() - 1) + ".";
    throw nb::index_error(sentence.c_str());
  }

  std::vector<RegionArray> regions_;
  RingProducer native_;
};

class PyConsumer {
 public:
  PyConsumer(const nb::sequence& rings, nb::handle doorbell, std::int64_t spin_us)
      : regions_(), native_(make(rings, doorbell, spin_us, regions_)) {}

  std::size_t pop_many(const Vector<std::uint64_t>& words, const Vector<std::uint32_t>& sources,
                       double timeout, std::int64_t at_least, double linger) {
    if (words.size() == 0 || words.size() != sources.size()) {
      refuse("pop_many needs room for one word or more and for as many sources, but got " +
             std::to_string(words.size()) + " and " + std::to_string(sources.size()) + ".");
    }
    return native_.pop_many(words.data(), sources.data(), words.size(),
                            nanoseconds(timeout, "timeout"), checked(at_least, "at_least"),
                            nanoseconds(linger, "linger"), Interpreter());
  }

  std::uint64_t sleeps() const { return native_.sleeps(); }
  std::uint64_t rescues() const { return native_.rescues(); }

 private:
  static RingConsumer make(const nb::sequence& rings, nb::handle doorbell, std::int64_t spin_us,
                           std::vector<RegionArray>& regions) {
    constexpr std::int64_t most = 1'000'000;
    if (spin_us < 0 || spin_us > most) {
      refuse("spin_us must be between 0 and " + std::to_string(most) + ", but is " +
             std::to_string(spin_us) + ".");
    }
    std::vector<RingPlace> places;
    for (nb::handle array : rings) {
      regions.push_back(region(array, "a ring"));
      places.push_back({reinterpret_cast<Ring*>(regions.back().data()),
                        capacity_of(regions.back(), "a ring", sizeof(Ring), word_bytes)});
    }
    if (places.empty()) refuse("A consumer needs at least one ring, but got none.");
    regions.push_back(doorbell_region(doorbell));
    return RingConsumer(places, as_doorbell(regions.back()), spin_us * 1000);
  }

  std::vector<RegionArray> regions_;
  RingConsumer native_;
};

class PyByteRing {
 public:
  explicit PyByteRing(nb::handle array)
      : region_(region(array, "a byte ring")),
        capacity_(capacity_of(region_, "a byte ring", sizeof(ByteRing), 1)),
        native_(reinterpret_cast<ByteRing*>(region_.data())) {}

  bool push(nb::handle record) {
    Py_buffer view;
    if (PyObject_GetBuffer(record.ptr(), &view, PyBUF_SIMPLE) != 0) throw nb::python_error();
    const bool fitted = native_->push(capacity_, view.buf, static_cast<std::size_t>(view.len));
    PyBuffer_Release(&view);
    return fitted;
  }

  nb::list pop_all() {
    nb::list records;
    native_->pop_all(capacity_, [&](std::size_t length, auto&& copy) {
      PyObject* record = PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(length));
      if (record == nullptr) throw nb::python_error();
      copy(PyBytes_AS_STRING(record));
      records.append(nb::steal(record));
    });
    return records;
  }

  std::uint64_t lost() const {
    // relaxed: a count that orders nothing.
    return native_->lost.load(std::memory_order_relaxed);
  }

 private:
  RegionArray region_;
  std::size_t capacity_;
  ByteRing* native_;
};

class PyWeights {
 public:
  PyWeights(nb::handle array, std::int64_t num_floats)
      : region_(region(array, "the weights", weights_bytes(num_floats))),
        num_floats_(static_cast<std::size_t>(num_floats)),
        native_(reinterpret_cast<Weights*>(region_.data())) {}

  std::uint64_t publish(const Vector<const float>& source) {
    check_length(source.size());
    nb::gil_scoped_release unlocked;
    return native_->publish(source.data(), num_floats_);
  }

  std::uint64_t read(const Vector<float>& target) {
    check_length(target.size());
    nb::gil_scoped_release unlocked;
    return native_->read(target.data(), num_floats_);
  }

  std::uint64_t version() const { return native_->current(); }

 private:
  void check_length(std::size_t length) const {
    if (length == num_floats_) return;
    refuse("These weights have " + std::to_string(num_floats_) + " floats, but the array has " +
           std::to_string(length) + ".");
  }

  RegionArray region_;
  std::size_t num_floats_;
  Weights* native_;
};

class PyCounters {
 public:
  explicit PyCounters(nb::handle array) : region_(cells(array)), native_(region_.data()) {}

  std::int64_t load(std::int64_t i) const { return native_.load(checked_index(i)); }
  void store(std::int64_t i, std::int64_t value) { native_.store(checked_index(i), value); }
  std::int64_t add(std::int64_t i, std::int64_t delta) {
    return native_.add(checked_index(i), delta);
  }

  void load_many(const Vector<const std::int64_t>& indices, const Vector<std::int64_t>& out) const {
    if (indices.size() != out.size()) {
      refuse("load_many needs as many indices as places for values, but got " +
             std::to_string(indices.size()) + " and " + std::to_string(out.size()) + ".");
    }
    for (std::size_t i = 0; i < indices.size(); ++i) {
      out.data()[i] = native_.load(checked_index(indices.data()[i]));
    }
  }

  nb::ndarray<nb::numpy, std::int64_t, nb::ndim<1>> snapshot() const {
    auto* values = new std::int64_t[region_.size()];
    nb::capsule owner(values, [](void* p) noexcept { delete[] static_cast<std::int64_t*>(p); });
    for (std::size_t i = 0; i < region_.size(); ++i) values[i] = native_.load(i);
    return {values, {region_.size()}, owner};
  }

 private:
  static Vector<std::int64_t> cells(nb::handle array) {
    Vector<std::int64_t> found;
    if (!nb::try_cast(array, found, /* convert = */ false) ||
        reinterpret_cast<std::uintptr_t>(found.data()) % Counters::Cell::required_alignment != 0) {
      refuse("The region of counters must be a writable, aligned, C-contiguous, one-dimensional "
             "numpy array of int64; pass a view from Layout.views.");
    }
    return found;
  }

  std::size_t checked_index(std::int64_t i) const {
    if (i >= 0 && static_cast<std::size_t>(i) < region_.size()) return static_cast<std::size_t>(i);
    const std::string sentence = "There is no counter " + std::to_string(i) + ": there are " +
                                 std::to_string(region_.size()) + ", counted from 0.";
    throw nb::index_error(sentence.c_str());
  }

  Vector<std::int64_t> region_;
  Counters native_;
};

}  // namespace

NB_MODULE(_native, m) {
    // A process that ends by an exception keeps objects alive in its traceback: no fault, and nothing
    // that a user should read a page about.
    nb::set_leak_warnings(false);
  m.doc() = "Lock-free primitives in shared memory; see the modules of fastrl.shm.";
  nb::exception<Closed>(m, "Closed");

  m.attr("DOORBELL_BYTES") = sizeof(Doorbell);
  m.def("ring_bytes", &ring_bytes, "capacity"_a);
  m.def("byte_ring_bytes", &byte_ring_bytes, "capacity"_a);
  m.def("weights_bytes", &weights_bytes, "num_floats"_a);
  m.def("close_doorbell", [](nb::handle array) { as_doorbell(doorbell_region(array))->close(); },
        "doorbell"_a);
  m.def("doorbell_closed",
        [](nb::handle array) { return as_doorbell(doorbell_region(array))->is_closed(); },
        "doorbell"_a);

  // noconvert: a converted argument would be a copy, and what is written to it would be lost.
  nb::class_<PyProducer>(m, "Producer")
      .def(nb::init<const nb::sequence&, const nb::sequence&>(), "rings"_a, "doorbells"_a)
      .def("push", &PyProducer::push, "ring"_a, "word"_a)
      .def("push_many", &PyProducer::push_many, "ring_ids"_a.noconvert(), "words"_a.noconvert())
      .def_prop_ro("wakes", &PyProducer::wakes);

  nb::class_<PyConsumer>(m, "Consumer")
      .def(nb::init<const nb::sequence&, nb::handle, std::int64_t>(), "rings"_a, "doorbell"_a,
           "spin_us"_a = 0)
      .def("pop_many", &PyConsumer::pop_many, "words"_a.noconvert(), "sources"_a.noconvert(),
           "timeout"_a, "at_least"_a = 1, "linger"_a = 0.0)
      .def_prop_ro("sleeps", &PyConsumer::sleeps)
      .def_prop_ro("rescues", &PyConsumer::rescues);

  nb::class_<PyByteRing>(m, "ByteRing")
      .def(nb::init<nb::handle>(), "region"_a)
      .def("push", &PyByteRing::push, "record"_a)
      .def("pop_all", &PyByteRing::pop_all)
      .def_prop_ro("lost", &PyByteRing::lost);

  nb::class_<PyWeights>(m, "Weights")
      .def(nb::init<nb::handle, std::int64_t>(), "region"_a, "num_floats"_a)
      .def("publish", &PyWeights::publish, "source"_a.noconvert())
      .def("read", &PyWeights::read, "target"_a.noconvert())
      .def_prop_ro("version", &PyWeights::version);

  nb::class_<PyCounters>(m, "Counters")
      .def(nb::init<nb::handle>(), "region"_a)
      .def("load", &PyCounters::load, "index"_a)
      .def("store", &PyCounters::store, "index"_a, "value"_a)
      .def("add", &PyCounters::add, "index"_a, "delta"_a)
      .def("load_many", &PyCounters::load_many, "indices"_a.noconvert(), "out"_a.noconvert())
      .def("snapshot", &PyCounters::snapshot);
}

}  // namespace fastrl
