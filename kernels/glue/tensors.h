// From torch's tensors to a ConvCall and back.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <utility>

#include "msctx/process.h"
#include "msctx/conv.h"
#include "glue/kept_weights.h"

namespace msctx::glue {

// The policy in force at a place, as a call takes it, or nullptr.
struct GiveBack {
  void operator()(const Taken* taken) const { msctx_give_back(taken); }
};
using Policy = std::unique_ptr<const Taken, GiveBack>;
// What a callback of ours has thrown in this thread: through the kernels' library nothing passes. It is thrown again by `check`, once a
// function of that library says that it is not done.
inline thread_local std::exception_ptr thrown;
template <class Work>
int caught(const Work& work) try {
  work();
  return 1;
} catch (const std::exception&) {  // the end of a thread of Python's is none, and passes
  thrown = std::current_exception();
  return 0;
}
inline void check(int done) {
  const std::exception_ptr error = std::exchange(thrown, nullptr);
  if (done) return;
  if (error) std::rethrow_exception(error);
  throw std::bad_alloc();
}
inline Policy policy_at(Place place) {
  const Taken* taken = nullptr;
  check(msctx_take(place, &taken));
  return Policy(taken);
}
// What this thread runs meanwhile: nothing particular, ours on trial, which is not counted, or torch's own ways, where no policy holds.
enum class Trial : int32_t { none, ours, torchs };
extern constinit thread_local Trial trial;
// The call that a convolution costs when there is none.
inline bool in_force(Place place) { return msctx_in_force(place) != 0 && trial != Trial::torchs; }
inline bool requests(int32_t bits, Direction direction) { return bits >> int(direction) & 1; }
inline bool requests_products(Place place) { return requests(msctx_in_force(place), Direction::matmul) && trial != Trial::torchs; }
inline const Decision* decision_of(const Taken& policy, const ConvCall& call, Direction direction, int threads, bool again = false) {
  const Decision* decision = nullptr;
  check(msctx_decide(&policy, &call, direction, threads, again, &decision));
  return decision;
}

// What distinguishes a tensor whose values lie without gaps, by all of its bytes.
inline Fingerprint print_of(const at::Tensor& dense, const Parallel& threads) {
  Fingerprint found;
  check(msctx_fingerprint(nullptr, dense.const_data_ptr(), int64_t(dense.nbytes()), &found, &threads));
  return found;
}

// Called before a row of ours computes, and with each call that is counted, when it has, in the thread that computes; nullptr: nobody is.
extern std::atomic<void (*)(const char* ran)> on_algorithm;
inline void tell(const Decision& decision) {
  if (const auto told = on_algorithm.load(std::memory_order_relaxed)) told(decision.ran);
}

// The watched module of a weight: by its storage, else by its shape where only one watched weight has it. nullptr: none. The string lives as
// long as the process. Without `by_shape` the storage alone decides.
const std::string* module_of(const at::Tensor& weight, bool by_shape = true);

// What a weight is known by.
inline c10::StorageImpl* storage_of(const at::Tensor& t) {
  return t.has_storage() ? t.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl() : nullptr;
}

inline std::string joined(at::IntArrayRef sizes) { return msctx::joined(sizes.data(), sizes.size()); }

inline Parallel threads_of_torch() {
  if (forks || at::in_parallel_region()) return serial();
  return {at::get_num_threads(), nullptr, [](void*, int64_t tasks, void (*task)(void*, int64_t, int), void* arg) {
            const auto some = [&](int64_t begin, int64_t end) {
              const int slot = at::get_thread_num();
              for (int64_t i = begin; i < end; i++) task(arg, i, slot);
            };
            return caught([&] { at::parallel_for(0, tasks, 1, some); });
          }};
}

inline std::optional<DType> dtype_of(const at::Tensor& t) {
  switch (t.scalar_type()) {
    case at::kFloat: return DType::f32;
    case at::kDouble: return DType::f64;
    case at::kHalf: return DType::f16;
    case at::kBFloat16: return DType::bf16;
    default: return std::nullopt;
  }
}

// Sixteen bits as float32, whose sums are rounded once.
inline at::Tensor wide(const at::Tensor& t) { return t.element_size() == 2 ? t.to(at::kFloat) : t; }

struct Geometry {
  at::IntArrayRef stride, padding, dilation, output_padding;
  bool transposed;
  int64_t groups;
};

// The call, or nothing: what torch itself would refuse (its own error is the better one), and what has no such form, see `reason`.
inline std::optional<ConvCall> call_of(
    const at::Tensor& input, const at::Tensor& weight, const Geometry& g, c10::DeviceType device, const char*& reason) {
  reason = "";
  if (input.device() != weight.device()) return std::nullopt;
  if (input.layout() != at::kStrided || weight.layout() != at::kStrided || input.device().type() != device) {
    reason = "msctx computes dense tensors only";
    return std::nullopt;
  }
  const auto dtype = dtype_of(input);
  if (input.scalar_type() != weight.scalar_type()) return std::nullopt;
  if (!dtype) {
    reason = "msctx computes float32, float64, float16 and bfloat16";
    return std::nullopt;
  }
  const int64_t dims = input.dim() - 2;
  if (dims < 1 || dims > 3 || weight.dim() != input.dim() || g.groups < 1) return std::nullopt;
  const auto along = [&](at::IntArrayRef values, int64_t axis) { return values.size() == 1 ? values[0] : values[axis]; };
  for (const at::IntArrayRef values : {g.stride, g.padding, g.dilation, g.output_padding})
    if (values.size() != 1 && values.size() != size_t(dims)) return std::nullopt;

  ConvCall call{};
  ConvProblem& p = call.problem;
  p.dims = int32_t(dims);
  p.dtype = *dtype;
  p.n = input.size(0);
  p.k = weight.size(0);
  p.c = weight.size(1) * g.groups;
  p.groups = g.groups;
  call.transposed = g.transposed;
  if (p.c < 1 || p.k < 1 || p.k % g.groups != 0 || input.size(1) != (g.transposed ? p.k : p.c)) return std::nullopt;
  for (int i = 0; i < 3; i++) p.in[i] = p.out[i] = p.window[i] = p.stride[i] = p.dilation[i] = 1;
  for (int64_t axis = 0; axis < dims; axis++) {
    const int64_t i = 3 - dims + axis, size = input.size(2 + axis);
    p.window[i] = weight.size(2 + axis);
    p.stride[i] = along(g.stride, axis);
    p.pad[i] = along(g.padding, axis);
    p.dilation[i] = along(g.dilation, axis);
    call.output_padding[i] = g.transposed ? along(g.output_padding, axis) : 0;
    // What no memory holds may overflow below, and in torch: that is its own affair.
    constexpr int64_t most = int64_t(1) << 30;
    if (size > most || p.window[i] > most || p.stride[i] > most || p.pad[i] > most || p.dilation[i] > most || call.output_padding[i] > most)
      return std::nullopt;
    if (p.window[i] < 1 || p.stride[i] < 1 || p.pad[i] < 0 || p.dilation[i] < 1 || size < 1) return std::nullopt;
    const int64_t reach = p.dilation[i] * (p.window[i] - 1) + 1;
    if (g.transposed) {
      const int64_t extra = call.output_padding[i];
      if (extra < 0 || (extra >= p.stride[i] && extra >= p.dilation[i])) return std::nullopt;
      p.out[i] = size;
      p.in[i] = (size - 1) * p.stride[i] - 2 * p.pad[i] + reach + extra;
    } else {
      p.in[i] = size;
      p.out[i] = size + 2 * p.pad[i] < reach ? 0 : (size + 2 * p.pad[i] - reach) / p.stride[i] + 1;
    }
    if (p.in[i] < 1 || p.out[i] < 1) return std::nullopt;
  }
  if (const std::string* module = module_of(weight)) call.module = module->c_str();
  call.device = larger(0, input.device().index());
  return call;
}

inline std::vector<int64_t> shape_of(int64_t a, int64_t b, const int64_t extent[3], int dims) {
  std::vector<int64_t> sizes{a, b};
  sizes.insert(sizes.end(), extent + 3 - dims, extent + 3);
  return sizes;
}

// The shape of the result in a direction.
inline std::vector<int64_t> result_shape(const ConvCall& call, Direction direction) {
  const ConvProblem& p = call.problem;
  switch (op_of(direction, call.transposed)) {
    case Op::forward: return shape_of(p.n, p.k, p.out, p.dims);
    case Op::backward_data: return shape_of(p.n, p.c, p.in, p.dims);
    default: return shape_of(p.k, group_c(p), p.window, p.dims);
  }
}

// Whether what was made of a weight in earlier calls may serve a run; `checked`: of its same bytes alone, whatever frozen_weights allows.
enum class Weight { kept, checked, fresh };

// Whether it is a parameter that compiled code was given (watch.cpp).
bool is_compiled_with(const at::Tensor& weight);

// What frozen_weights is about: a tensor that records gradients by itself, or one of a watched module, or a parameter in compiled code.
// Others change: compiled code computes weights into memory that held another one before.
inline bool is_parameter(const at::Tensor& t) {
  const at::TensorBase& base = t.is_view() ? t._base() : t;
  return (base.requires_grad() && base.is_leaf()) || module_of(t, false) || is_compiled_with(t);
}
inline Weight kept_as(const Taken& policy, const at::Tensor& weight) {
  return !policy.frozen_weights || is_parameter(weight) ? Weight::kept : Weight::checked;
}

// Whether frozen_weights vouches for a float32 weight of a call: in inference (product.cpp).
bool keeps_weight(const Taken& policy, const at::Tensor& weight);

// How a run went: whether its result had to be computed again, and how many forms of its weight were kept and were made.
struct Ran {
  bool again = false;
  int weights_kept = 0, weights_prepared = 0;
};

// What follows an fprop or a product; the tensors are contiguous float32, `other` shaped as the result, in any format.
struct Finishing {
  at::Tensor scale, shift, other;
  Epilogue how;
};

// `first`, `second` and the result as run_row has them.
inline ConvTensors tensors_of(Op op, bool transposed, void* first, void* second, void* result) {
  switch (op) {
    case Op::forward: return {first, second, result};
    case Op::backward_data: return {result, second, first};
    default: return transposed ? ConvTensors{second, result, first} : ConvTensors{first, result, second};
  }
}

// Computes by a row; true: the result had to be computed again.
inline bool compute(
    const Taken& policy, const ConvRow& row, const ConvProblem& p, Op op, const ConvTensors& t, const Kept* kept, const Parallel& threads) {
  const auto allocate = [](void*, size_t bytes) {
    void* data = nullptr;
    caught([&] { data = take_scratch(bytes); });
    return data;
  };
  const Memory memory{allocate, [](void*, void* data) { release_scratch(data); }, nullptr};
  const int again = msctx_compute(&policy, &row, &p, op, &t, kept, &memory, &threads);
  check(again >= 0);
  return again != 0;
}

// Runs a row. The result lies in `into`, which has its shape and format, if that is defined.
// fprop and matmul: first = input, second = weight; dgrad: gradient of the output, weight; wgrad: input, gradient of the output.
inline at::Tensor run_row(
    const Taken& policy, const ConvRow& row, const ConvCall& call, const at::Tensor& first, const at::Tensor& second,
    at::MemoryFormat format, const Finishing* finishing, Weight kind, Ran& ran, const at::Tensor& into = {}) {
  const ConvProblem& p = call.problem;
  const Op op = op_of(row.direction, call.transposed);
  const bool last = format == at::MemoryFormat::ChannelsLast && row.algorithm->reads_channels_last;
  const auto read_in = last ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous;
  const bool reads_weight = row.direction != Direction::wgrad;
  // It brings the weight into the usual order only where that is needed.
  const bool may_keep = reads_weight && row.algorithm->prepare && (call.keeps_weight || !row.algorithm->prepared_if_kept);
  const bool keeps_weight = may_keep && kind != Weight::fresh;
  const at::Tensor a = first.contiguous(read_in);
  const at::Tensor b = keeps_weight ? second : second.contiguous(reads_weight ? at::MemoryFormat::Contiguous : read_in);
  const auto sizes = result_shape(call, row.direction);
  const bool late = !reads_weight;  // torch brings this gradient into its format afterwards: other strides along extents of 1
  at::Tensor result = into.defined() ? into : late ? at::empty(sizes, first.options()) : at::empty(sizes, first.options(), format);
  const at::Tensor plain = last || result.is_contiguous() ? result : at::empty(sizes, first.options());
  void* const second_data = keeps_weight && !b.is_contiguous() ? nullptr : b.data_ptr();
  ConvTensors t = tensors_of(op, call.transposed, a.data_ptr(), second_data, plain.data_ptr());
  t.channels_last = last;
  Epilogue epilogue;
  at::Tensor other;
  if (finishing) {
    const auto data_of = [](const at::Tensor& values) { return values.defined() ? values.const_data_ptr<float>() : nullptr; };
    if (finishing->other.defined()) other = finishing->other.contiguous(last ? format : at::MemoryFormat::Contiguous);
    epilogue = finishing->how;
    epilogue.scale = data_of(finishing->scale), epilogue.shift = data_of(finishing->shift), epilogue.other = data_of(other);
    t.epilogue = &epilogue;
  }
  const Parallel threads = threads_of_torch();
  if (keeps_weight) {
    Keeper keeper(policy, second, key_of(*row.algorithm, p, op), threads, policy.frozen_weights && kind == Weight::kept);
    const Kept kept = keeper.kept();
    ran.again = compute(policy, row, p, op, t, &kept, threads);
    ran.weights_kept = keeper.found, ran.weights_prepared = keeper.made;
  } else {
    ran.again = compute(policy, row, p, op, t, nullptr, threads);
  }
  if (!plain.is_same(result)) result.copy_(plain);
  return late ? result.contiguous(format) : result;
}

}  // namespace msctx::glue
