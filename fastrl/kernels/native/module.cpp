// The Python face of the kernels: checks shapes, lets go of the GIL. Signatures and docstrings are
// repeated for type checkers in _kernels.pyi.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "choice.h"
#include "elu.h"
#include "images.h"
#include "noise.h"
#include "rows.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace fastrl {
namespace {

template <class T, class... Shape>
using Array = nb::ndarray<T, nb::c_contig, nb::device::cpu, Shape...>;
template <class T>
using Vector = Array<T, nb::ndim<1>>;
template <class T>
using Grid = Array<T, nb::ndim<2>>;

[[noreturn]] void refuse(const std::string& sentence) { throw std::invalid_argument(sentence); }

void check_equal(std::size_t found, std::size_t expected, const char* what) {
  if (found != expected)
    refuse(std::string(what) + " is " + std::to_string(found) + ", expected " +
           std::to_string(expected) + ".");
}

// out: bf16 as uint16, or f32.
template <class Out>
void images(const Array<const std::uint8_t, nb::ndim<4>>& rows, const Vector<const std::int64_t>& index,
            std::optional<Array<const float, nb::ndim<3>>> mean,
            std::optional<Array<const float, nb::ndim<3>>> scale, float clip,
            Array<Out, nb::ndim<4>>& out, std::size_t side) {
  const std::size_t channels = rows.shape(1), height = rows.shape(2), width = rows.shape(3);
  const std::size_t pixels = height * width;
  if (channels > most_channels)
    refuse("The images have " + std::to_string(channels) + " channels, at most " +
           std::to_string(most_channels) + " are taken.");
  check_equal(out.shape(0), index.shape(0), "The number of rows to write");
  if (side < 1 || side > std::min(height, width))
    refuse("Squares of " + std::to_string(side) + " pixels do not fit into the images.");
  check_equal(out.shape(1) * out.shape(2) * out.shape(3),
              (height / side) * (width / side) * side * side * channels, "The size of a row");
  check_equal(mean.has_value(), scale.has_value(), "The number of scales");
  if (mean) {
    check_equal(mean->size(), channels * pixels, "The size of the means");
    check_equal(scale->size(), channels * pixels, "The size of the scales");
  }
  for (std::size_t i = 0; i < index.shape(0); ++i)
    if (index.data()[i] < 0 || static_cast<std::size_t>(index.data()[i]) >= rows.shape(0))
      refuse("Row " + std::to_string(index.data()[i]) + " was asked for, but there are " +
             std::to_string(rows.shape(0)) + ".");
  const Images all{rows.data(), index.data(), index.shape(0),
                   channels,    height,       width,
                   side,        mean ? mean->data() : nullptr,
                   scale ? scale->data() : nullptr, clip};
  nb::gil_scoped_release release;
  if constexpr (sizeof(Out) == 2) {
    images_to_bf16(all, out.data());
  } else {
    images_to_f32(all, out.data());
  }
}

void elu_in_place(Vector<std::uint16_t>& x) {
  nb::gil_scoped_release release;
  elu_bf16(x.data(), x.size());
}

void choose_rows(const nb::ndarray<const float, nb::ndim<2>, nb::device::cpu>& log_p,
                 const Vector<const float>& u, Vector<std::int32_t>& action,
                 Vector<float>& log_prob) {
  const std::size_t n = log_p.shape(0), count = log_p.shape(1);
  if (n < 1 || n > most_choices)
    refuse("There are " + std::to_string(n) + " choices, 1 to " + std::to_string(most_choices) +
           " are taken.");
  if (count > 1) check_equal(static_cast<std::size_t>(log_p.stride(1)), 1, "The stride of rows");
  check_equal(u.shape(0), count, "The number of random numbers");
  check_equal(action.shape(0), count, "The number of actions");
  check_equal(log_prob.shape(0), count, "The number of log-probabilities");
  nb::gil_scoped_release release;
  choose(log_p.data(), static_cast<std::size_t>(log_p.stride(0)), n, count, u.data(),
         action.data(), log_prob.data());
}

void uniform_rows(std::uint64_t key, const Vector<const std::int64_t>& env,
                  const Vector<const std::int64_t>& step, Grid<float>& out) {
  check_equal(step.shape(0), env.shape(0), "The number of steps");
  check_equal(out.shape(0), env.shape(0), "The number of rows to write");
  nb::gil_scoped_release release;
  uniform(key, env.data(), step.data(), env.shape(0), out.shape(1), out.data());
}

template <class T>
using Rows = Array<T, nb::ndim<3>>;

// The arrays of one group's rows, and where their running episodes are kept.
class RowFinisher {
 public:
  RowFinisher(Vector<const float> reward, Vector<const bool> episode_over,
              Rows<const bool> terminated, Rows<const bool> truncated, Rows<bool> ignored,
              Rows<float> stored_reward, Vector<double> returns, Vector<std::int64_t> lengths,
              float scale, std::optional<float> limit, bool sign)
      : reward_(std::move(reward)), episode_over_(std::move(episode_over)),
        terminated_(std::move(terminated)), truncated_(std::move(truncated)),
        ignored_(std::move(ignored)), stored_reward_(std::move(stored_reward)),
        returns_(std::move(returns)), lengths_(std::move(lengths)), scale_(scale),
        limit_(limit.value_or(0.0f)),
        clip_(sign ? Clip::sign : limit ? Clip::limit : Clip::off) {
    const std::size_t size = reward_.shape(0);
    for (const std::size_t found :
         {episode_over_.shape(0), terminated_.shape(2), truncated_.shape(2), ignored_.shape(2),
          stored_reward_.shape(2), returns_.shape(0), lengths_.shape(0)})
      check_equal(found, size, "The number of environments");
    for (const std::size_t found : {truncated_.shape(0), ignored_.shape(0), stored_reward_.shape(0)})
      check_equal(found, terminated_.shape(0), "The number of slots");
    for (const std::size_t found :
         {truncated_.shape(1), ignored_.shape(1) - 1, stored_reward_.shape(1)})
      check_equal(found, terminated_.shape(1), "The number of rows");
  }

  nb::tuple finish(std::size_t slot, std::size_t row) {
    const std::size_t size = reward_.shape(0), length = terminated_.shape(1);
    if (slot >= terminated_.shape(0) || row >= length)
      refuse("There is no row " + std::to_string(row) + " of slot " + std::to_string(slot) + ".");
    const std::size_t at = (slot * length + row) * size;
    const std::size_t at_ignored = (slot * (length + 1) + row) * size;
    const RowFacts facts = finish_row(
        Row{size, reward_.data(), terminated_.data() + at, truncated_.data() + at,
            episode_over_.data(), ignored_.data() + at_ignored, ignored_.data() + at_ignored + size,
            stored_reward_.data() + at, returns_.data(), lengths_.data()},
        scale_, clip_, limit_);
    return nb::make_tuple(facts.valid, facts.finite, facts.terminated, facts.over);
  }

 private:
  Vector<const float> reward_;
  Vector<const bool> episode_over_;
  Rows<const bool> terminated_, truncated_;
  Rows<bool> ignored_;
  Rows<float> stored_reward_;
  Vector<double> returns_;
  Vector<std::int64_t> lengths_;
  float scale_, limit_;
  Clip clip_;
};

}  // namespace
}  // namespace fastrl

NB_MODULE(_kernels, m) {
    // A process that ends by an exception keeps objects alive in its traceback: no fault, and nothing
    // that a user should read a page about.
    nb::set_leak_warnings(false);
  using namespace fastrl;
  m.attr("MOST_CHANNELS") = most_channels;
  m.attr("MOST_CHOICES") = most_choices;
  m.def("images_to_bf16", &images<std::uint16_t>, "rows"_a, "index"_a, "mean"_a.none(),
        "scale"_a.none(), "clip"_a, "out"_a.noconvert(), "side"_a = 1);
  m.def("images_to_f32", &images<float>, "rows"_a, "index"_a, "mean"_a.none(), "scale"_a.none(),
        "clip"_a, "out"_a.noconvert(), "side"_a = 1);
  m.def("elu_bf16", &elu_in_place, "x"_a.noconvert());
  m.def("choose", &choose_rows, "log_p"_a, "u"_a, "action"_a.noconvert(),
        "log_prob"_a.noconvert());
  nb::class_<RowFinisher>(m, "RowFinisher")
      .def(nb::init<Vector<const float>, Vector<const bool>, Rows<const bool>, Rows<const bool>,
                    Rows<bool>, Rows<float>, Vector<double>, Vector<std::int64_t>, float,
                    std::optional<float>, bool>(),
           "reward"_a.noconvert(), "episode_over"_a.noconvert(), "terminated"_a.noconvert(),
           "truncated"_a.noconvert(), "ignored"_a.noconvert(), "stored_reward"_a.noconvert(),
           "returns"_a.noconvert(), "lengths"_a.noconvert(), "scale"_a, "limit"_a.none(), "sign"_a)
      .def("finish", &RowFinisher::finish, "slot"_a, "row"_a);
  m.def("uniform", &uniform_rows, "key"_a, "env"_a, "step"_a, "out"_a.noconvert());
}
