// msctx::convolution where torch computes it, and msctx::linear.
#include "glue/hook.h"

#include <ATen/Context.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>
#include <cfloat>
#include <cstring>

#include "glue/kept_weights.h"
#include "glue/observed.h"

namespace msctx::glue {
namespace {

constexpr auto last = at::MemoryFormat::ChannelsLast;

// oneDNN's operators: torch has them where it was built with it.
struct OneDnn {
  std::optional<c10::OperatorHandle> pack, run, run_and_add;
  OneDnn() {
    auto& all = c10::Dispatcher::singleton();
    pack = all.findSchema({"mkldnn::_reorder_convolution_weight", ""});
    run = all.findSchema({"mkldnn::_convolution_pointwise", ""});
    run_and_add = all.findSchema({"mkldnn::_convolution_pointwise", "binary"});
  }
  bool is_there() const { return pack && run && run_and_add && at::globalContext().userEnabledMkldnn(); }
};

// An activation as oneDNN has it, if it does.
struct Named {
  const char* name = nullptr;
  bool keeps_nan = false;  // else it makes a number of it
};
constexpr Named named[std::size(activation_names)] = {
    {"none", true}, {"relu"}, {"hardtanh"}, {"swish", true}, {"sigmoid", true}, {"hardswish", true}};

at::Tensor called(const c10::OperatorHandle& op, torch::jit::Stack stack) {
  op.callBoxed(stack);
  return stack[0].toTensor();
}

void finish(const at::Tensor& result, const at::Tensor& other, Epilogue how) {
  if (other.defined()) how.other = other.const_data_ptr<float>();
  const Parallel threads = threads_of_torch();
  check(msctx_finish(
      nullptr, &how, result.data_ptr<float>(), result.size(0), result.size(1), c10::multiply_integers(result.sizes().slice(2)), &threads));
}

// The largest magnitude among the values of dense float32 tensors, of which some may be undefined; Inf where one is not finite.
double largest_of(std::initializer_list<at::Tensor> tensors, const Parallel& parallel) {
  constexpr int64_t piece = int64_t(1) << 15;
  int32_t bits = 0;
  for (const at::Tensor& t : tensors) {
    if (!t.defined()) continue;
    const float* values = t.const_data_ptr<float>();
    const int64_t pieces = t.numel() / piece;
    check(msctx_peaks(nullptr, values, pieces, 1, piece, &bits, &parallel));
    check(msctx_peaks(nullptr, values + pieces * piece, 1, 1, t.numel() % piece, &bits, &parallel));
  }
  float largest;
  std::memcpy(&largest, &bits, sizeof largest);
  return largest;
}

// Whether no sum can be NaN, nor any part of it, of weights whose magnitudes add up to no more than `norm` for a result. The input and what
// is added are read for that; not where a pass over the results costs less. Half of what fits: the shift may be as large as what is added.
bool is_finite(
    const at::Tensor& input, double norm, const at::Tensor& shift, const at::Tensor& added, int64_t results, const Parallel& parallel) {
  int64_t to_read = 0;
  for (const at::Tensor& t : {input, added}) {
    if (t.defined() && !t.is_non_overlapping_and_dense()) return false;
    to_read += t.defined() ? t.numel() : 0;
  }
  if (to_read > 2 * results || !(norm < FLT_MAX)) return false;
  return largest_of({input}, parallel) * norm + largest_of({shift, added}, parallel) < FLT_MAX / 2;
}

int64_t along(at::IntArrayRef numbers, int64_t axis) { return numbers.size() == 1 ? numbers[0] : numbers[axis]; }

int64_t results_of(const at::Tensor& input, const at::Tensor& weight, const Geometry& g) {
  int64_t results = input.size(0) * weight.size(0);
  for (int64_t i = 0; i < input.dim() - 2; i++)
    results *= (input.size(i + 2) + 2 * along(g.padding, i) - along(g.dilation, i) * (weight.size(i + 2) - 1) - 1) / along(g.stride, i) + 1;
  return results;
}

// Whether the first result reads the image along each axis: oneDNN crashes where anything follows results of padding alone.
bool reads_image(const at::Tensor& input, const at::Tensor& weight, const Geometry& g) {
  for (int64_t i = 0; i < input.dim() - 2; i++)
    if (along(g.padding, i) > along(g.dilation, i) * (weight.size(i + 2) - 1) || along(g.dilation, i) > input.size(i + 2)) return false;
  return true;
}

at::Tensor by_onednn(
    const OneDnn& dnn, const Taken& policy, const at::Tensor& input, const at::Tensor& weight, const Geometry& g, const Finishing& f) {
  std::string what = "onednn";
  for (const at::IntArrayRef numbers : {input.sizes(), weight.sizes(), g.stride, g.padding, g.dilation})
    what += '|' + joined(numbers);
  const Parallel& parallel = threads_of_torch();
  Keeper keeper(policy, weight, what + '|' + std::to_string(g.groups), parallel, policy.frozen_weights && is_parameter(weight));
  const KeptTensor kept = keeper.tensor(f.scale, [&] {
    const at::Tensor scaled = (f.scale.defined() ? weight.mul(f.scale.view({-1, 1, 1, 1})) : weight).contiguous();
    return KeptTensor{
        called(*dnn.pack, {scaled, g.padding.vec(), g.stride.vec(), g.dilation.vec(), g.groups, input.sizes().vec()}),
        largest_of({scaled}, parallel) * double(c10::multiply_integers(scaled.sizes().slice(1)))};
  });
  const bool reads = reads_image(input, weight, g);
  const std::optional<at::Tensor> shift = f.shift.defined() && reads ? std::optional(f.shift) : std::nullopt;
  using Scalars = c10::List<std::optional<at::Scalar>>;
  const Activation activation = f.how.activation;
  const Named name = named[size_t(activation)];
  const bool has_other = f.other.defined(), adds_first = has_other && !f.how.adds_last;
  // oneDNN's operator that adds has relu alone to follow.
  const bool adds = has_other && reads && (activation == Activation::none || (adds_first && activation == Activation::relu));
  const at::Tensor other = has_other ? f.other.contiguous(last) : f.other;
  // What is added afterwards takes a pass, which an activation costs nothing.
  const bool is_worth_it = adds == has_other;
  const bool activates = reads && name.name && (adds || !adds_first) && f.how.low <= f.how.high &&
      (name.keeps_nan || (is_worth_it && is_finite(input, kept.norm, f.shift, other, results_of(input, weight, g), parallel)));
  if (adds && activates) {
    const c10::IValue follows = activation == Activation::none ? c10::IValue() : c10::IValue(name.name);
    return called(
        *dnn.run_and_add, {input, other, kept.tensor, shift, g.padding.vec(), g.stride.vec(), g.dilation.vec(), g.groups, "add",
                           at::Scalar(1.0), follows, Scalars(), c10::IValue()});
  }
  const bool is_clamp = activates && activation == Activation::clamp;
  const at::Tensor result = called(
      *dnn.run, {input, kept.tensor, shift, g.padding.vec(), g.stride.vec(), g.dilation.vec(), g.groups, activates ? name.name : "none",
                 is_clamp ? Scalars({at::Scalar(f.how.low), at::Scalar(f.how.high)}) : Scalars(), c10::IValue()});
  if (activates && !has_other) return result;
  Epilogue rest = f.how;
  if (activates) rest.activation = Activation::none;
  const at::Tensor dense = result.contiguous(last);
  if (f.shift.defined() && !reads) dense.add_(f.shift.view({1, -1, 1, 1}));
  finish(dense, other, rest);
  return dense;
}

}  // namespace

at::Tensor finished_by_torch(
    const Taken* policy, const at::Tensor& input, const at::Tensor& weight, const Geometry& g, const Finishing& f,
    c10::function_ref<at::Tensor()> convolution) {
  static const OneDnn& dnn = immortal<OneDnn>();
  const InsideTorch guard;
  const at::AutoDispatchBelowADInplaceOrView below;
  if (policy && dnn.is_there()) return by_onednn(dnn, *policy, input, weight, g, f).contiguous(last);
  const at::Tensor result = convolution().contiguous(last);
  finish(result, f, last);
  return result;
}

Finishing finishing_of(
    const char* of, int64_t channels, const std::optional<at::Tensor>& scale, const std::optional<at::Tensor>& shift,
    const std::optional<at::Tensor>& other, c10::string_view activation, double low, double high, bool adds_last) {
  const auto* const found = std::find(std::begin(activation_names), std::end(activation_names), activation);
  TORCH_CHECK(found != std::end(activation_names), of, ": unknown activation ", activation);
  for (const auto& [name, values] : {std::pair("scale", scale), std::pair("shift", shift)})
    TORCH_CHECK(
        !values || !values->defined() || (values->numel() == channels && values->scalar_type() == at::kFloat), of, ": ", name, " has ",
        values->numel(), " values; the result has ", channels, " channels");
  const auto dense = [](const std::optional<at::Tensor>& t) { return t && t->defined() ? t->contiguous() : at::Tensor(); };
  Finishing finishing{dense(scale), dense(shift), other && other->defined() ? *other : at::Tensor(), {}};
  finishing.how.activation = Activation(found - activation_names);
  finishing.how.low = float(low), finishing.how.high = float(high), finishing.how.adds_last = adds_last;
  return finishing;
}

void describe(ConvCall& call, const Finishing& f) {
  call.activation = int32_t(f.how.activation), call.adds_last = f.other.defined() && f.how.adds_last;
  call.has_scale = f.scale.defined(), call.has_shift = f.shift.defined(), call.has_other = f.other.defined();
}

void finish(const at::Tensor& result, const Finishing& f, at::MemoryFormat format) {
  Epilogue how = f.how;
  if (f.scale.defined()) how.scale = f.scale.const_data_ptr<float>();
  if (f.shift.defined()) how.shift = f.shift.const_data_ptr<float>();
  finish(result, f.other.defined() ? f.other.contiguous(format) : f.other, how);
}

namespace {

at::Tensor linear(
    const at::Tensor& left, const at::Tensor& right, const std::optional<at::Tensor>& scale, const std::optional<at::Tensor>& shift,
    const std::optional<at::Tensor>& other, c10::string_view activation, double low, double high, bool adds_last) {
  constexpr const char* name = "msctx::linear";
  TORCH_CHECK(
      left.dim() == 2 && right.dim() == 2 && left.scalar_type() == at::kFloat && right.scalar_type() == at::kFloat, name,
      ": float32 matrices only");
  const Finishing f = finishing_of(name, right.size(1), scale, shift, other, activation, low, high, adds_last);
  const int64_t sizes[] = {left.size(0), right.size(1)};
  TORCH_CHECK(
      !f.other.defined() || (f.other.sizes() == at::IntArrayRef(sizes) && f.other.scalar_type() == at::kFloat), name,
      ": other has another shape than the result");
  return finished_product(left, right, f);
}

}  // namespace

void install_finished() {
  static auto* const defined = new torch::Library(torch::Library::FRAGMENT, "msctx", std::nullopt, __FILE__, __LINE__);
  defined->def(
      "convolution(Tensor input, Tensor weight, int[] stride, int[] padding, int[] dilation, int groups, Tensor? scale, Tensor? shift, "
      "Tensor? other, str activation, float low, float high, bool adds_last) -> Tensor");
  defined->def(
      "linear(Tensor left, Tensor right, Tensor? scale, Tensor? shift, Tensor? other, str activation, float low, float high, bool adds_last) "
      "-> Tensor");
  library("msctx", c10::DispatchKey::CPU).impl("convolution", TORCH_FN(finished_convolution));
  library("msctx", c10::DispatchKey::CPU).impl("linear", TORCH_FN(linear));
}

}  // namespace msctx::glue

using namespace msctx;

// Whether a row of ours may compute a float32 product of compiled code, and what follows it, under the policy in force: see
// msctx_may_compute. `product`: JSON (msctx/graph/epilogues.py).
MSCTX_API int msctx_may_compute_product(const char* product) try {
  const Json p = Json::of(product);
  const glue::Policy policy = glue::policy_at(Place::cpu);
  if (!policy || !glue::requests(policy->requests, Direction::matmul)) return 0;
  ConvCall call = glue::call_of_product(
      {p["rows"].integer(), p["depth"].integer(), p["columns"].integer()}, p["left_transposed"].is_on(), p["right_transposed"].is_on(),
      DType::f32, *policy);
  call.activation = int32_t(p["activation"].integer()), call.adds_last = p["adds_last"].is_on();
  call.has_scale = p["has_scale"].is_on(), call.has_shift = p["has_shift"].is_on(), call.has_other = p["has_other"].is_on();
  return msctx_may_compute(policy.get(), &call, Direction::matmul, at::get_num_threads());
} catch (const std::exception&) {
  return 0;
}
