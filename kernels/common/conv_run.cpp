// Runs an algorithm, and looks after what none of them does itself: problems that are empty, results that are not finite or lost beside far
// larger values, and the gradient of the bias.
#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>

#define MSCTX_ISA generic
#include "common/run.h"
#include "msctx/elements.h"
#include "msctx/process.h"

namespace msctx {
namespace {

struct Scratch {
  const Memory& memory;
  void* data;
  Scratch(const Memory& memory, size_t bytes) : memory(memory), data(bytes ? memory.allocate(memory.arg, bytes) : nullptr) {
    if (bytes && !data) throw std::bad_alloc();
  }
  ~Scratch() {
    if (data) memory.release(memory.arg, data);
  }
  Scratch(const Scratch&) = delete;
};

// The norm of each window, [results][terms], and before them the largest weight.
size_t window_norms_size(const ConvProblem& p) { return sizeof(float) * size_t(1 + p.k * group_c(p)); }
void prepare_window_norms(const ConvTable&, const ConvProblem&, Op, const void* w, float* norms, const Parallel&);

// Weights of one run: in forms that are kept, else made in scratch.
struct Weights {
  const ConvTable& table;
  const ConvAlgorithm& algorithm;
  const ConvProblem& p;
  Op op;
  const void* w;
  const Kept* kept;
  const Memory& memory;
  const Parallel& parallel;
  std::optional<Scratch> made[Prepared::most_forms] = {}, norms = {};

  Prepared prepared() {
    return {[](void* self, int form) { return static_cast<Weights*>(self)->get(form); }, this};
  }
  // What was made in scratch; it is made again where it is wanted again.
  void drop() {
    for (auto& one : made) one.reset();
    norms.reset();
  }

 private:
  const void* get(int form) {
    if (form == plain_weight || form == kept_plain_weight) return plain(form);
    const size_t bytes = form == window_norms ? window_norms_size(p) : algorithm.prepared_size(p, op, form);
    Making making{*this, form};
    const void* const found = kept ? kept->form(kept->arg, form, bytes, Making::make, &making) : nullptr;
    if (found || algorithm.prepared_if_kept) return found;
    std::optional<Scratch>& own = form == window_norms ? norms : made[form];
    if (!own) make(form, own.emplace(memory, bytes).data);
    return own->data;
  }
  const void* plain(int form = plain_weight) const {
    const void* found = w ? w : kept->form(kept->arg, form, 0, nullptr, nullptr);
    if (found == nullptr) throw std::bad_alloc();
    return found;
  }
  void make(int form, void* to) const {
    if (form == window_norms)
      prepare_window_norms(table, p, op, plain(), static_cast<float*>(to), parallel);
    else
      algorithm.prepare(p, op, form, plain(), to, parallel);
  }
  struct Making {
    const Weights& weights;
    int form;
    static int make(void* self, void* to) {
      return done([&] { static_cast<Making*>(self)->weights.make(static_cast<Making*>(self)->form, to); });
    }
  };
};

// from [outer][rows][columns] to [outer][columns][rows], in blocks that stay in the cache.
void transpose(const float* from, float* to, int64_t outer, int64_t rows, int64_t columns, const Parallel& parallel) {
  constexpr int64_t block = 32;
  const int64_t across = divide_up(columns, block);
  parallel_for(parallel, outer * across, [&](int64_t task, int) {
    const int64_t start = task / across * rows * columns, j0 = task % across * block, j1 = smaller(j0 + block, columns);
    for (int64_t i0 = 0; i0 < rows; i0 += block)
      for (int64_t j = j0; j < j1; j++)
        for (int64_t i = i0; i < smaller(i0 + block, rows); i++) to[start + j * rows + i] = from[start + i * columns + j];
  });
}

// The tensors of a problem, channels first: as they are, or copies. The result is brought back at the end.
struct Plain {
  ConvTensors tensors;
  Plain(const ConvProblem& p, Op op, const ConvTensors& t, const Memory& memory, const Parallel& parallel)
      : tensors(t), p_(p), op_(op), t_(t), parallel_(parallel) {
    if (!t.channels_last) return;
    tensors.channels_last = false;
    tensors.x = x_.emplace(memory, sizeof(float) * size_t(x_size(p))).data;
    tensors.y = y_.emplace(memory, sizeof(float) * size_t(y_size(p))).data;
    if (op != Op::backward_data) transpose(floats(t.x), floats(tensors.x), p.n, volume(p.in), p.c, parallel);
    if (op != Op::forward) transpose(floats(t.y), floats(tensors.y), p.n, volume(p.out), p.k, parallel);
  }
  ~Plain() {
    if (!t_.channels_last) return;
    if (op_ == Op::backward_data) transpose(floats(tensors.x), floats(t_.x), p_.n, p_.c, volume(p_.in), parallel_);
    if (op_ == Op::forward) transpose(floats(tensors.y), floats(t_.y), p_.n, p_.k, volume(p_.out), parallel_);
    y_.reset();
  }

 private:
  static float* floats(void* data) { return static_cast<float*>(data); }
  const ConvProblem& p_;
  Op op_;
  const ConvTensors& t_;
  const Parallel& parallel_;
  std::optional<Scratch> x_, y_;
};

// Of each channel, in all images: its largest |value| (see peak_of in conv.h).
using Peaks = std::vector<int64_t>;
constexpr int64_t no_peak = peak_of(0, 0);
Peaks peaks_of(
    const ConvTable& table, const float* values, int64_t n, int64_t channels, int64_t positions, bool channels_last, const Parallel& parallel) {
  Peaks found(size_t(channels), no_peak);
  table.passes->peaks(values, n, channels, positions, channels_last, found.data(), parallel);
  return found;
}
int32_t largest_of(const Peaks& peaks) { return peaks.empty() ? 0 : bits_of(*std::max_element(peaks.begin(), peaks.end())); }
double magnitude_of(int64_t peak) { return std::bit_cast<float>(bits_of(peak)); }

// Of each channel, in all images: sums of |value| and of its square.
struct Sums {
  double sum = 0.0, squares = 0.0;
  void add(double value) { sum += std::fabs(value), squares += value * value; }
};
std::vector<Sums> sums_of(
    const float* values, int64_t n, int64_t channels, int64_t positions, bool channels_last, const Parallel& parallel) {
  std::vector<Sums> found(size_t(n * channels));
  parallel_for(parallel, channels_last ? n : n * channels, [&](int64_t task, int) {
    const float* from = values + task * positions * (channels_last ? channels : 1);
    Sums* const to = found.data() + task * (channels_last ? channels : 1);
    for (int64_t i = 0; i < positions; i++, from += channels_last ? channels : 1)
      for (int64_t c = 0; c < (channels_last ? channels : 1); c++) to[c].add(double(from[c]));
  });
  for (int64_t i = channels; i < n * channels; i++) {
    found[size_t(i % channels)].sum += found[size_t(i)].sum;
    found[size_t(i % channels)].squares += found[size_t(i)].squares;
  }
  found.resize(size_t(channels));
  return found;
}

// What transforms round: relatively, by `norm`, what the largest value of each channel could add to a result if signs were random within a
// window, but the same in all channels, since images and windows that are alike round alike (NaN: a value is not finite, or images or
// weights are so small throughout that transforms have no bits left of them); and absolutely, by `denormal`, what they lose of a result when they
// compute with numbers below the smallest normal one.
struct Rounding {
  double norm = NAN, denormal = 0.0;
};
// Times the distance of such numbers: 0.3 is expected of Fourier's transforms, whatever their size, some ten of Winograd's.
double lost_of(double squares) { return 64 * 0x1p-149 * std::sqrt(squares); }

// Images or weights that are so throughout.
bool are_tiny(float largest) { return largest > 0 && largest < 0x1p-100f; }

Rounding rounding_of_weights(const ConvTable& table, const ConvProblem& p, const ConvTensors& t, const Parallel& parallel) {
  const auto* const x = static_cast<const float*>(t.x);
  const auto* const y = static_cast<const float*>(t.y);
  const Peaks peaks_of_x = peaks_of(table, x, p.n, p.c, volume(p.in), t.channels_last, parallel);
  const Peaks peaks_of_y = peaks_of(table, y, p.n, p.k, volume(p.out), t.channels_last, parallel);
  for (const Peaks* peaks : {&peaks_of_x, &peaks_of_y})
    if (largest_of(*peaks) >= infinity_bits || are_tiny(std::bit_cast<float>(largest_of(*peaks)))) return {};
  const auto of_x = sums_of(x, p.n, p.c, volume(p.in), t.channels_last, parallel);
  const auto of_y = sums_of(y, p.n, p.k, volume(p.out), t.channels_last, parallel);
  double squares = 0.0, largest = 0.0;
  for (const auto* sums : {&of_x, &of_y})
    for (const Sums& each : *sums) squares = std::max(squares, each.squares);
  const int64_t gc = group_c(p), gk = group_k(p);
  for (int64_t k = 0; k < p.k; k++)
    for (int64_t c = k / gk * gc; c < (k / gk + 1) * gc; c++) {
      const double a = magnitude_of(peaks_of_x[size_t(c)]), b = magnitude_of(peaks_of_y[size_t(k)]);
      // A third: that all of a factor meets the largest of the other is far more than any tile has.
      largest = std::max(largest, std::min(a * of_y[size_t(k)].sum, b * of_x[size_t(c)].sum) / 3);
    }
  return {largest, largest > 0.0 ? lost_of(squares) : 0.0};
}

Rounding rounding_of(
    const ConvTable& table, const ConvProblem& p, Op op, const ConvTensors& t, const Prepared& weight, const Parallel& parallel) {
  if (op == Op::backward_weight) return rounding_of_weights(table, p, t, parallel);
  const bool forward = op == Op::forward;
  const Peaks peaks = peaks_of(
      table, static_cast<const float*>(forward ? t.x : t.y), p.n, forward ? p.c : p.k, volume(forward ? p.in : p.out), t.channels_last,
      parallel);
  const auto* norms = static_cast<const float*>(weight(window_norms));
  const float largest_weight = *norms++;
  if (largest_of(peaks) >= infinity_bits || !(largest_weight < INFINITY)) return {};
  if (are_tiny(largest_weight) || are_tiny(std::bit_cast<float>(largest_of(peaks)))) return {};
  const int64_t results = forward ? p.k : p.c, terms = forward ? group_c(p) : group_k(p), each = forward ? group_k(p) : group_c(p);
  double largest = 0.0, factors = 0.0;
  for (int64_t r = 0; r < results; r++) {
    double norm = 0.0, weights = 0.0, values = 0.0;
    for (int64_t i = 0; i < terms; i++, norms++) {
      const double peak = magnitude_of(peaks[size_t(r / each * terms + i)]);
      norm += double(*norms) * peak;
      weights += double(*norms) * double(*norms);
      values += double(volume(p.window)) * peak * peak;
    }
    if (!(norm < INFINITY)) return {};
    largest = std::max(largest, norm);
    factors = std::max(factors, std::max(weights, values));
  }
  return {largest, largest > 0.0 ? lost_of(factors) : 0.0};
}

template <class T>
void sum_channels(const T* y, int64_t n, int64_t channels, int64_t positions, T* bias, const Parallel& parallel) {
  constexpr int lanes = 8;  // sums side by side, so that the additions need not wait for each other
  parallel_for(parallel, channels, [&](int64_t c, int) {
    double sums[lanes] = {};
    for (int64_t i = 0; i < n; i++) {
      const T* from = y + (i * channels + c) * positions;
      int64_t j = 0;
      for (; j + lanes <= positions; j += lanes)
        for (int l = 0; l < lanes; l++) sums[l] += generic::to_double(from[j + l]);
      for (int l = 0; j < positions; j++, l++) sums[l] += generic::to_double(from[j]);
    }
    double sum = 0.0;
    for (double part : sums) sum += part;
    bias[c] = generic::from_double<T>(sum);
  });
}

// The same of y with channels last: some neighbouring channels at a time.
template <class T>
void sum_channels_last(const T* y, int64_t rows, int64_t channels, T* bias, const Parallel& parallel) {
  constexpr int64_t together = 16;
  parallel_for(parallel, divide_up(channels, together), [&](int64_t task, int) {
    const int64_t first = task * together, count = smaller(together, channels - first);
    double sums[together] = {};
    for (int64_t i = 0; i < rows; i++)
      for (int64_t c = 0; c < count; c++) sums[c] += generic::to_double(y[i * channels + first + c]);
    for (int64_t c = 0; c < count; c++) bias[first + c] = generic::from_double<T>(sums[c]);
  });
}

void finish(const ConvTable& table, const ConvProblem& p, Op op, const ConvTensors& t, const Parallel& parallel) {
  if (!t.epilogue) return;
  const bool forward = op == Op::forward;
  auto* const result = static_cast<float*>(forward ? t.y : t.x);
  table.passes->finish(*t.epilogue, result, p.n, forward ? p.k : p.c, volume(forward ? p.out : p.in), t.channels_last, parallel);
}

// Whether the result is finite, and the largest value of it large enough for what may have been lost. `noted`: the peaks of its channels, if
// the algorithm has raised them: it may have applied an epilogue since.
bool holds(
    const ConvTable& table, const ConvAlgorithm& algorithm, const ConvProblem& p, Op op, const ConvTensors& t, const Peaks& noted,
    const Lost& lost, const Rounding& rounding, const Prepared& weight, const Parallel& parallel) {
  const bool of_weights = op == Op::backward_weight, forward = op == Op::forward;
  const auto* const result = static_cast<const float*>(of_weights ? t.w : forward ? t.y : t.x);
  const int64_t n = of_weights ? 1 : p.n, channels = of_weights || forward ? p.k : p.c;
  const int64_t places = of_weights ? group_c(p) * volume(p.window) : volume(forward ? p.out : p.in);
  const bool last = t.channels_last && !of_weights;
  const Peaks peaks = noted.empty() ? peaks_of(table, result, n, channels, places, last, parallel) : noted;
  const int32_t bits = largest_of(peaks);
  if (bits >= infinity_bits) return false;  // of the finite ones beside it, nothing is known
  const double largest = std::bit_cast<float>(bits), norm = rounding.norm, error = algorithm.error(p, op);
  if (rounding.denormal > error * largest) return false;
  const auto is_enough = [&](double unit) { return lost.most <= error * unit && norm <= algorithm.most_spread * unit; };
  if (!is_enough(largest)) {
    // Results that cancel are small, but not what they are sums of: it is enough to look at one.
    const auto peak = std::max_element(peaks.begin(), peaks.end());
    const int64_t place = place_of(*peak);
    ConvTensors plain = t;
    if (plain.w == nullptr) plain.w = const_cast<void*>(weight(kept_plain_weight));
    const double unit = magnitude_at(p, op, plain, place / places, peak - peaks.begin(), place % places);
    if (!is_enough(unit) && (lost.each == 0.0 || lost_at_most(p, op, plain, lost, parallel) > error * unit)) return false;
  }
  const double terms = double(of_weights ? p.n * volume(p.out) : (forward ? group_c(p) : group_k(p)) * volume(p.window));
  return algorithm.most_spread == 0.0 || largest <= 4 * std::sqrt(terms) * norm;  // no sum is larger than that
}

void prepare_window_norms(const ConvTable& table, const ConvProblem& p, Op op, const void* w, float* norms, const Parallel& parallel) {
  const auto* const from = static_cast<const float*>(w);
  const int64_t gc = group_c(p), gk = group_k(p), window = volume(p.window);
  const bool forward = op == Op::forward;
  const int64_t results = forward ? p.k : p.c, terms = forward ? gc : gk, each = forward ? gk : gc;
  norms[0] = std::bit_cast<float>(largest_of(peaks_of(table, from, 1, p.k, gc * window, false, parallel)));
  parallel_for(parallel, results, [&](int64_t r, int) {
    for (int64_t i = 0; i < terms; i++) {
      const int64_t k = forward ? r : r / each * terms + i, c = forward ? i : r % each;
      double sum = 0.0;
      for (int64_t tap = 0; tap < window; tap++) sum += double(from[(k * gc + c) * window + tap]) * double(from[(k * gc + c) * window + tap]);
      norms[1 + r * terms + i] = float(std::sqrt(sum));
    }
  });
}

}  // namespace

const ConvAlgorithm* algorithm_named(const ConvTable& table, const char* name) {
  for (int i = 0; i < table.count; i++)
    if (std::strcmp(table.rows[i].algorithm->name, name) == 0) return table.rows[i].algorithm;
  return nullptr;
}

size_t memory_of(const ConvAlgorithm& algorithm, const ConvProblem& p, Op op, int threads) {
  if (is_empty(p)) return 0;
  const bool prepares = algorithm.prepared_size && !algorithm.prepared_if_kept;
  return workspace_of(algorithm, p, op, threads) + (prepares ? align64(algorithm.prepared_size(p, op, 0)) : 0);
}

static bool run_together(
    const ConvTable& table, const ConvAlgorithm& algorithm, const ConvProblem& p, Op op, const ConvTensors& t, Weights& weights,
    const Memory& memory, const Parallel& parallel) {
  const Prepared weight = weights.prepared();
  if (is_empty(p)) {
    void* const result = op == Op::forward ? t.y : op == Op::backward_data ? t.x : t.w;
    const int64_t count = op == Op::forward ? y_size(p) : op == Op::backward_data ? x_size(p) : w_size(p);
    generic::with_type(p.dtype, [&](auto zero) {
      if (count) std::memset(result, 0, sizeof zero * size_t(count));
    });
    finish(table, p, op, t, parallel);
    return false;
  }
  const bool transforms = algorithm.most_spread > 0.0;
  const Rounding rounding = transforms ? rounding_of(table, p, op, t, weight, parallel) : Rounding{0.0, 0.0};
  if (!std::isnan(rounding.norm)) {
    const Scratch scratch(memory, workspace_of(algorithm, p, op, parallel.threads));
    ConvTensors now = t;
    const bool finishes = algorithm.finishes && op != Op::backward_weight;
    if (!finishes || (t.epilogue && t.epilogue->other && !t.channels_last)) now.epilogue = nullptr;
    Lost lost;
    Peaks peaks;
    if (finishes) peaks.assign(size_t(op == Op::forward ? p.k : p.c), no_peak);
    now.lost = &lost;
    now.peaks = peaks.empty() ? nullptr : peaks.data();
    const bool has_run = algorithm.run(p, op, now, weight, scratch.data, parallel);
    if (has_run && ((lost.most == 0.0 && !transforms) || holds(table, algorithm, p, op, now, peaks, lost, rounding, weight, parallel))) {
      if (!now.epilogue) finish(table, p, op, t, parallel);
      return false;
    }
  }
  weights.drop();  // a limit on workspaces holds for each of the two
  {
    const ConvAlgorithm& safe = *algorithm_named(table, safe_algorithm);
    Plain plain(p, op, t, memory, parallel);
    const Scratch scratch(memory, workspace_of(safe, p, op, parallel.threads));
    if (plain.tensors.w == nullptr) plain.tensors.w = const_cast<void*>(weight(plain_weight));
    safe.run(p, op, plain.tensors, weight, scratch.data, parallel);
  }
  finish(table, p, op, t, parallel);
  return true;
}

bool conv_run(
    const ConvTable& table, const ConvAlgorithm& algorithm, const ConvProblem& p, Op op, const ConvTensors& t, const Kept* kept,
    const Memory& memory, const Parallel& parallel, bool images_apart) {
  Weights weights{table, algorithm, p, op, t.w, kept, memory, parallel};
  if (!images_apart || p.n <= 1) return run_together(table, algorithm, p, op, t, weights, memory, parallel);
  ConvProblem image = p;
  image.n = 1;
  const int64_t size = p.dtype == DType::f64 ? 8 : p.dtype == DType::f32 ? 4 : 2;
  const auto at = [&](void* tensor, int64_t elements, int64_t i) { return static_cast<char*>(tensor) + i * elements * size; };
  bool again = false;
  for (int64_t i = 0; i < p.n; i++) {
    ConvTensors part = t;
    part.x = at(t.x, x_size(image), i), part.y = at(t.y, y_size(image), i);
    Epilogue epilogue;
    if (t.epilogue) {
      epilogue = *t.epilogue;
      if (epilogue.other) epilogue.other += i * (op == Op::forward ? y_size(image) : x_size(image));
      part.epilogue = &epilogue;
    }
    again |= run_together(table, algorithm, image, op, part, weights, memory, parallel);
  }
  return again;
}

int msctx_bias_gradient(
    const ConvProblem* p, const void* y, int channels_last, int64_t channels, int64_t positions, void* bias, const Parallel* parallel) {
  const auto sums = [&](auto zero) {
    using T = decltype(zero);
    if (channels_last)
      sum_channels_last(static_cast<const T*>(y), p->n * positions, channels, static_cast<T*>(bias), *parallel);
    else
      sum_channels(static_cast<const T*>(y), p->n, channels, positions, static_cast<T*>(bias), *parallel);
  };
  return done([&] { generic::with_type(p->dtype, sums); });
}

}  // namespace msctx
