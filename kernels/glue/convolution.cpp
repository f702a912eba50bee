// The hook: what runs in place of aten::convolution and aten::convolution_backward, on CPU tensors and on those of CUDA.
#include <ATen/Context.h>
#include <ATen/TracerMode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/native/ConvUtils.h>
#include <ATen/ops/_convolution_ops.h>
#include <ATen/ops/convolution_backward_ops.h>
#include <ATen/ops/convolution_ops.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <sstream>
#include <unordered_set>

#include "glue/cuda.h"
#include "glue/hook.h"
#include "glue/precision_policy.h"
#include "glue/python.h"
#include "glue/tensors.h"

namespace msctx::glue {

constinit std::array<c10::DeviceType, places> devices{};
constinit thread_local int inside_torch = 0;

namespace {

// Under a mode that lowers to float16, unless the processor has AMX-FP16: oneDNN has reference loops alone for gradients and grouped
// convolutions, some forty times as slow as float32, and the others are up to three times as slow. They are computed in float32 and
// rounded once.
bool is_slow(const at::Tensor& tensor) {
  static const bool has_unit = msctx_table("amx_fp16") != nullptr;
  if (tensor.scalar_type() != at::kHalf || has_unit) return false;
  const Combination* combination = combination_in_force();
  return combination && combination->policies[0] && combination->policies[0]->lowers_to_half && !(combination->overruled & 1);
}

// Weights, by their storages: so many at most. As long as there are none, to ask costs a load.
class Weights {
 public:
  void add(const at::Tensor& weight) {
    constexpr size_t most = 1 << 14;
    const std::lock_guard<std::mutex> guard(lock_);
    if (all_.size() >= most) all_.clear();
    all_.insert(storage_of(weight));
    any_.store(true, std::memory_order_relaxed);
  }
  // Whether it is there; it stays, or not.
  bool has(const at::Tensor& weight, bool stays = false) {
    if (!any_.load(std::memory_order_relaxed)) return false;
    const std::lock_guard<std::mutex> guard(lock_);
    const bool found = stays ? all_.count(storage_of(weight)) > 0 : all_.erase(storage_of(weight)) > 0;
    any_.store(!all_.empty(), std::memory_order_relaxed);
    return found;
  }

 private:
  std::mutex& lock_ = fork_safe_mutex();
  std::atomic<bool> any_{false};
  std::unordered_set<const void*> all_;
};
// Those that have had a forward pass under a policy that names gradients' algorithms, and no backward pass yet. And those whose forward
// pass was computed in float32 instead of float16: their backward pass shall be, too, wherever it runs. One that is gone may be taken for
// another one at its address.
Weights &waiting = immortal<Weights>(), &widened_weights = immortal<Weights>();

at::MemoryFormat format_of(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias, const Geometry& g) {
  const auto sym = [](at::IntArrayRef v) { return c10::fromIntArrayRefSlow(v); };
  const auto backend = at::native::select_conv_backend(
      input, weight, bias, sym(g.stride), sym(g.padding), sym(g.dilation), g.transposed, sym(g.output_padding), g.groups, std::nullopt);
  if (weight.dim() != 3) return at::native::_determine_backend_memory_format(input, weight, backend);
  const at::Tensor in_2d = weight.unsqueeze(2);  // which alone counts: torch brings the input into the usual order
  return at::native::_determine_backend_memory_format(in_2d, in_2d, backend);
}

// While torch.jit.trace records a convolution: nothing is measured then.
thread_local bool is_traced = false;
struct Traced {
  Traced() { is_traced = true; }
  ~Traced() { is_traced = false; }
};

// A convolution under a policy: the geometry in plain integers, and the call, if it is one of ours.
struct UnderPolicy {
  const Policy policy;
  const Place place = policy->place;
  const Geometry geometry;
  const char* reason = "";
  std::optional<ConvCall> call;
  bool finishes = false;  // it is msctx::convolution

  UnderPolicy(
      Policy taken, const at::Tensor& input, const at::Tensor& weight, SymInts s, SymInts p, SymInts d, bool transposed,
      SymInts o, const c10::SymInt& groups)
      : policy(std::move(taken)),
        geometry{
            C10_AS_INTARRAYREF_SLOW(s), C10_AS_INTARRAYREF_SLOW(p), C10_AS_INTARRAYREF_SLOW(d), C10_AS_INTARRAYREF_SLOW(o), transposed,
            groups.guard_int(__FILE__, __LINE__)} {
    call = call_of(input, weight, geometry, devices[int(place)], reason);
    if (!call) return;
    const bool is_cpu = place == Place::cpu;
    const auto format = is_cpu ? input.suggest_memory_format() : cuda_format(input, weight);
    call->channels_last = format != at::MemoryFormat::Contiguous;
    call->keeps_weight = is_cpu && keeps_weight(*policy, weight);
    const at::Context& torch = at::globalContext();
    call->torch_is_deterministic = torch.deterministicAlgorithms() && !torch.deterministicAlgorithmsWarnOnly();
    if (is_cpu) return;
    call->torch_is_deterministic |= torch.deterministicCuDNN();
    call->torch_allows_tf32 = torch.allowTF32CuDNN(at::Float32Op::CONV);
    call->allows_tf32 = call->torch_allows_tf32 && policy->allow_tf32 && policy->allow_fp32_emulation;
    call->torch_allows_cudnn = torch.userEnabledCuDNN();
    call->torch_benchmarks = torch.benchmarkCuDNN();
  }
  int threads() const { return place == Place::cpu ? at::get_num_threads() : 1; }

  // What runs by a row, in a direction: fprop: input, weight; dgrad: gradient of the output, weight; wgrad: input, that gradient.
  at::Tensor run(
      const ConvRow& row, const at::Tensor& first, const at::Tensor& second, const at::Tensor& input, const at::Tensor& weight,
      const std::optional<at::Tensor>& bias, const Finishing* finishing, Weight kind, Ran& ran) const {
    if (place == Place::cuda) return run_on_cuda(row, *call, policy->number, first, second);
    const at::MemoryFormat format = finishes ? at::MemoryFormat::ChannelsLast : format_of(input, weight, bias, geometry);
    ConvCall now = *call;
    now.problem.dtype = *dtype_of(first);
    const bool is_1d = weight.dim() == 3, permutes = is_1d && format != at::MemoryFormat::Contiguous;
    const at::Tensor result =
        run_row(*policy, row, now, first, second, is_1d ? at::MemoryFormat::Contiguous : format, finishing, kind, ran);
    return permutes ? result.unsqueeze(2).contiguous(format).squeeze(2) : result;
  }

  const Decision* decide(Direction direction, const at::Tensor& input, const at::Tensor& weight, bool again = false) const {
    if (call) {
      const CudaCall about(place == Place::cuda ? &*call : nullptr, policy->number);
      return decision_of(*policy, *call, direction, threads(), again);
    }
    return *reason ? refused(*policy, direction, reason, input, weight) : nullptr;
  }

  void refuse(Direction direction, const char* why) const {
    glue::refuse(*policy, direction, refused(*policy, direction, why, {}, {}, "", &*call));
  }

  // `ours(row)` and `torch()` do all that is done where they are chosen, on the call's own tensors.
  template <class Ours, class Torch>
  const Decision* measure(const Decision* guessed, Direction direction, const Ours& ours, const Torch& torch) const {
    const bool is_cuda = place == Place::cuda;
    if (at::in_parallel_region() || is_traced || (is_cuda && is_capturing(call->device))) return guessed;
    const CudaCall about(is_cuda ? &*call : nullptr, policy->number);
    const auto run = [&](const ConvRow* row) {
      Ran ran;
      if (row)
        ours(*row, ran);
      else
        torch();
      return ran.weights_prepared > 0;
    };
    return measured(*policy, *call, guessed, direction, threads(), run, is_cuda ? std::optional<int>(call->device) : std::nullopt);
  }

  // What a decision comes to. Where cuDNN cannot run an algorithm after all, the call is decided anew without it.
  template <class Ours, class Torch>
  at::Tensor computed(const Decision* decision, Direction direction, const Ours& ours, const Torch& torch) const {
    while (true) {
      try {
        const at::Tensor result = by_row(*policy, *decision, direction, ours);
        return result.defined() ? result : torch();
      } catch (const CudaFailed&) {
        decision = decide(direction, {}, {}, true);
        complain(*policy, *decision, direction);
      }
    }
  }
};

// fprop under a policy, with a bias or what finishes it. `torch` computes it torch's way.
template <class Torch>
at::Tensor forward(
    const UnderPolicy& requested, const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias, const Torch& torch,
    const Finishing* finishing = nullptr) {
  const bool has_bias = bias && bias->defined();
  if (requested.call && has_bias) {
    const int64_t channels = result_shape(*requested.call, Direction::fprop)[1];
    const bool fits = bias->dim() == 1 && bias->scalar_type() == input.scalar_type() && bias->size(0) == channels;
    if (!fits) {
      at::Tensor result = torch();  // whose own error is the better one; what it takes has fallen back
      requested.refuse(Direction::fprop, "its bias has another type or shape");
      return result;
    }
  }
  const Decision* decision = requested.decide(Direction::fprop, input, weight);
  // Without gradients, too: so the forward graphs of torch.compile run.
  const int32_t bits = requested.policy->requests;
  if (!c10::InferenceMode::is_enabled() && requested.call && (requests(bits, Direction::dgrad) || requests(bits, Direction::wgrad)))
    waiting.add(weight);
  if (decision == nullptr) return torch();
  complain(*requested.policy, *decision, Direction::fprop);
  const bool is_wide = has_bias && requested.place == Place::cpu && input.element_size() == 2;  // rounded once, after the addition
  const auto ours = [&](const ConvRow& row, Ran& ran) {
    const bool is_added = has_bias && input.scalar_type() == at::kFloat && row.algorithm->finishes;  // an epilogue is float32
    const Finishing added{{}, is_added ? bias->contiguous() : at::Tensor(), {}, {}};
    at::Tensor result = requested.run(
        row, is_wide ? wide(input) : input, is_wide ? wide(weight) : weight, input, weight, bias, is_added ? &added : finishing,
        kept_as(*requested.policy, weight), ran);
    if (has_bias && !is_added) {
      std::vector<int64_t> along(input.dim(), 1);
      along[1] = -1;
      result.add_(bias->view(along));
    }
    return is_wide ? result.to(input.scalar_type()) : result;
  };
  if (decision->to_measure) decision = requested.measure(decision, Direction::fprop, ours, torch);
  return requested.computed(decision, Direction::fprop, ours, torch);
}

at::Tensor gradient_of_bias(const UnderPolicy& requested, const at::Tensor& grad_output) {
  const bool last = grad_output.is_contiguous(at::MemoryFormat::ChannelsLast);
  const at::Tensor gradient = last ? grad_output : grad_output.contiguous();
  at::Tensor result = at::empty({gradient.size(1)}, gradient.options());
  const int64_t positions = requested.call->transposed ? volume(requested.call->problem.in) : volume(requested.call->problem.out);
  const Parallel threads = threads_of_torch();
  check(msctx_bias_gradient(&requested.call->problem, gradient.data_ptr(), last, gradient.size(1), positions, result.data_ptr(), &threads));
  return result;
}

}  // namespace

template <Place place>
at::Tensor convolution(
    const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias, SymInts stride, SymInts padding,
    SymInts dilation, bool transposed, SymInts output_padding, c10::SymInt groups) {
  const auto torch = [&] {
    const bool wider = place == Place::cpu && is_slow(input);
    if (wider && (weight.requires_grad() || input.requires_grad())) widened_weights.add(weight);
    const std::optional<at::Tensor> b = wider && bias && bias->defined() ? std::optional(wide(*bias)) : bias;
    at::Tensor found = Previous<place, at::_ops::convolution>::call(
        wider ? wide(input) : input, wider ? wide(weight) : weight, b, stride, padding, dilation, transposed,
        output_padding, groups);
    return wider ? found.to(at::kHalf) : found;
  };
  if (!in_force(place)) {
    waiting.has(weight);  // its next backward pass may belong to this one
    return torch();
  }
  if (at::tracer::impl::is_dispatch_enabled()) {  // torch.jit.trace records that operator, as it does without us, and not our steps
    const Traced guard;
    const at::Context& context = at::globalContext();
    return at::_ops::_convolution::call(
        input, weight, bias, stride, padding, dilation, transposed, output_padding, groups, context.benchmarkCuDNN(),
        context.deterministicCuDNN(), context.userEnabledCuDNN(), context.allowTF32CuDNN(at::Float32Op::CONV));
  }
  Policy taken = policy_at(place);
  if (!taken) return torch();
  const UnderPolicy requested(std::move(taken), input, weight, stride, padding, dilation, transposed, output_padding, groups);
  return forward(requested, input, weight, bias, torch);
}

// What torch.jit.trace has recorded; under a policy, the flags are those of torch's context.
template <Place place>
at::Tensor traced_convolution(
    const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias, SymInts stride, SymInts padding,
    SymInts dilation, bool transposed, SymInts output_padding, c10::SymInt groups, bool benchmark, bool deterministic, bool cudnn_enabled,
    bool allow_tf32) {
  if (inside_torch == 0 && in_force(place))
    return convolution<place>(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups);
  return Previous<place, at::_ops::_convolution>::call(
      input, weight, bias, stride, padding, dilation, transposed, output_padding, groups, benchmark, deterministic, cudnn_enabled,
      allow_tf32);
}

template <Place place>
Three convolution_backward(
    const at::Tensor& grad_output, const at::Tensor& input, const at::Tensor& weight, at::OptionalSymIntArrayRef bias_sizes,
    SymInts stride, SymInts padding, SymInts dilation, bool transposed, SymInts output_padding, c10::SymInt groups,
    std::array<bool, 3> output_mask) {
  const auto torch = [&](std::array<bool, 3> mask) {
    const bool wider =
        place == Place::cpu &&
        (is_slow(input) || (input.scalar_type() == at::kHalf && widened_weights.has(weight, true)));  // after the block
    if (!wider || grad_output.scalar_type() != at::kHalf)
      return Previous<place, at::_ops::convolution_backward>::call(
          grad_output, input, weight, bias_sizes, stride, padding, dilation, transposed, output_padding, groups, mask);
    auto [a, b, c] = Previous<place, at::_ops::convolution_backward>::call(
        wide(grad_output), wide(input), wide(weight), bias_sizes, stride, padding, dilation, transposed,
        output_padding, groups, mask);
    const auto narrowed = [](const at::Tensor& t) { return t.defined() ? t.to(at::kHalf) : t; };
    return Three(narrowed(a), narrowed(b), narrowed(c));
  };
  if (!in_force(place)) {
    if (waiting.has(weight))
      warn(
          "a convolution's backward pass runs after the with-block in which its forward ran: torch's own path computes it, as without "
          "the block; call backward() inside the block");
    return torch(output_mask);
  }
  Policy taken = policy_at(place);
  if (!taken) return torch(output_mask);
  const UnderPolicy requested(std::move(taken), input, weight, stride, padding, dilation, transposed, output_padding, groups);
  waiting.has(weight);
  const auto is_its_gradient = [&] {
    return grad_output.scalar_type() == input.scalar_type() && grad_output.sizes() == result_shape(*requested.call, Direction::fprop);
  };
  if (requested.call && !is_its_gradient()) {
    Three result = torch(output_mask);
    constexpr const char* reason = "its gradient has another type or shape than its result";
    if (output_mask[0]) requested.refuse(Direction::dgrad, reason);
    if (output_mask[1]) requested.refuse(Direction::wgrad, reason);
    return result;
  }

  std::array<bool, 3> left = output_mask;  // what torch still has to compute
  std::array<at::Tensor, 3> found;
  const auto one = [&](Direction direction, int index, const at::Tensor& first, const at::Tensor& second) {
    if (!output_mask[index]) return;
    const Decision* decision = requested.decide(direction, input, weight);
    if (decision == nullptr) return;
    complain(*requested.policy, *decision, direction);
    const auto ours = [&](const ConvRow& row, Weight kind, Ran& ran) {
      return requested.run(row, first, second, input, weight, std::nullopt, nullptr, kind, ran);
    };
    if (decision->to_measure) {
      std::array<bool, 3> alone{};
      alone[index] = true;
      alone[2] = direction == Direction::wgrad && output_mask[2] && requested.place == Place::cpu;  // who computes this gradient computes that of the bias
      const auto with_bias = [&](const ConvRow& row, Ran& ran) {
        ours(row, Weight::fresh, ran);  // as in a training, where each step changes it
        if (alone[2]) gradient_of_bias(requested, grad_output);
      };
      decision = requested.measure(decision, direction, with_bias, [&] { torch(alone); });
    }
    const auto none = [] { return at::Tensor(); };  // torch computes all that is left at once
    const auto kept = [&](const ConvRow& row, Ran& ran) { return ours(row, kept_as(*requested.policy, weight), ran); };
    found[index] = requested.computed(decision, direction, kept, none);
    left[index] = !found[index].defined();
  };
  one(Direction::dgrad, 0, grad_output, weight);
  one(Direction::wgrad, 1, input, grad_output);
  const bool ours = place == Place::cpu && (output_mask[1]
                        ? !left[1]
                        : requested.call && requested.policy->thread_invariant && requested.decide(Direction::wgrad, input, weight));
  if (output_mask[2] && ours) {
    found[2] = gradient_of_bias(requested, grad_output);
    left[2] = false;
  }
  if (left[0] || left[1] || left[2]) {
    auto [a, b, c] = torch(left);
    if (left[0]) found[0] = a;
    if (left[1]) found[1] = b;
    if (left[2]) found[2] = c;
  }
  return {found[0], found[1], found[2]};
}

namespace {

// By oneDNN, of a weight that is packed once; undefined where torch has no oneDNN.
at::Tensor by_packed(const UnderPolicy& requested, const at::Tensor& input, const at::Tensor& weight) {
  auto& all = c10::Dispatcher::singleton();
  static const auto pack = all.findSchema({"mkldnn::_reorder_convolution_weight", ""}), run = all.findSchema({"mkldnn::_convolution_pointwise", ""});
  if (!requested.call || !pack || !run || !at::globalContext().userEnabledMkldnn()) return {};
  const auto called = [](const c10::OperatorHandle& op, torch::jit::Stack stack) {
    op.callBoxed(stack);
    return stack[0].toTensor();
  };
  const Geometry& g = requested.geometry;
  const std::string what(reinterpret_cast<const char*>(&requested.call->problem), sizeof(ConvProblem));
  const auto padding = g.padding.vec(), stride = g.stride.vec(), dilation = g.dilation.vec();
  const Parallel threads = threads_of_torch();
  Keeper keeper(*requested.policy, weight, "onednn" + what, threads, requested.policy->frozen_weights && is_parameter(weight));
  const at::Tensor packed = keeper.tensor([&] {
    return called(*pack, {weight.contiguous(), padding, stride, dilation, g.groups, input.sizes().vec()});
  });
  const InsideTorch guard;
  const c10::List<std::optional<at::Scalar>> none;
  return called(*run, {input, packed, c10::IValue(), padding, stride, dilation, g.groups, "none", none, c10::IValue()});
}

// A result, channels_last, after a pass over it.
at::Tensor finish(const at::Tensor& given, const Finishing& f) {
  constexpr auto last = at::MemoryFormat::ChannelsLast;
  at::Tensor result = given.contiguous(last);
  Epilogue how = f.how;
  if (f.scale.defined()) how.scale = f.scale.const_data_ptr<float>();
  if (f.shift.defined()) how.shift = f.shift.const_data_ptr<float>();
  const at::Tensor other = f.other.defined() ? f.other.contiguous(last) : f.other;
  if (other.defined()) how.other = other.const_data_ptr<float>();
  const int64_t positions = c10::multiply_integers(result.sizes().slice(2));
  const Parallel threads = threads_of_torch();
  check(msctx_finish(nullptr, &how, result.data_ptr<float>(), result.size(0), result.size(1), positions, &threads));
  return result;
}

// What is the same in all calls of one place in a graph. As text it is one argument: a dozen cost as much as a small convolution.
struct Fixed {
  std::array<int64_t, 2> stride, padding, dilation;
  int64_t groups = 1;
  Epilogue how;
};

const Fixed& fixed_of(c10::string_view text) {
  static auto& known = immortal<std::map<std::string, Fixed, std::less<>>>();
  static std::mutex& lock = fork_safe_mutex();
  const std::lock_guard<std::mutex> guard(lock);
  if (const auto at = known.find(text); at != known.end()) return at->second;
  Fixed made;
  std::istringstream in{std::string(text)};
  std::string word, activation;
  for (auto* pair : {&made.stride, &made.padding, &made.dilation}) in >> word >> (*pair)[0] >> (*pair)[1];
  in >> word >> made.groups >> activation;
  const auto name = std::ranges::find(activation_names, activation);
  TORCH_CHECK_VALUE(in && name != std::end(activation_names), "msctx::convolution does not know what \"", text, "\" means");
  made.how.activation = Activation(name - activation_names);
  made.how.adds_last = bool(in >> word);
  return known.emplace(text, made).first->second;
}

// A batch norm of inference as a factor and a term for each channel.
std::array<at::Tensor, 2> of_batch_norm(
    const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& mean, const at::Tensor& variance, double epsilon) {
  const auto vector = [&] { return at::empty({variance.numel()}, variance.options()); };
  const std::array made{vector(), vector()};
  float *const factor = made[0].mutable_data_ptr<float>(), *const term = made[1].mutable_data_ptr<float>();
  const float *const m = mean.const_data_ptr<float>(), *const v = variance.const_data_ptr<float>();
  const float* const w = weight.defined() ? weight.const_data_ptr<float>() : nullptr;
  const float* const b = bias.defined() ? bias.const_data_ptr<float>() : nullptr;
  for (int64_t i = 0; i < variance.numel(); ++i) {
    factor[i] = (w ? w[i] : 1.0f) / std::sqrt(v[i] + float(epsilon));
    term[i] = (b ? b[i] : 0.0f) - m[i] * factor[i];
  }
  return made;
}

// Of 2-D float32, as msctx/graph/epilogues.py makes it. The result is channels_last, whatever the input is. With a mean and a variance,
// `scale` and `shift` are the weight and the bias of a batch norm.
at::Tensor finished_convolution(
    const at::Tensor& given, const at::Tensor& weight, c10::string_view text, const std::optional<at::Tensor>& scale,
    const std::optional<at::Tensor>& shift, const std::optional<at::Tensor>& mean, const std::optional<at::Tensor>& variance,
    const std::optional<at::Tensor>& other, double low, double high, double epsilon) {
  const auto dense = [](const std::optional<at::Tensor>& t) { return t && t->defined() ? t->contiguous() : at::Tensor(); };
  const auto& [stride, padding, dilation, groups, fixed] = fixed_of(text);
  Finishing finishing{dense(scale), dense(shift), other && other->defined() ? *other : at::Tensor(), fixed};
  if (mean && variance) {
    const auto [factor, term] = of_batch_norm(finishing.scale, finishing.shift, dense(mean), dense(variance), epsilon);
    finishing.scale = factor, finishing.shift = term;
  }
  Epilogue& how = finishing.how;
  how.low = float(low), how.high = float(high);
  constexpr int64_t none[] = {0, 0};
  const at::Tensor input = given.contiguous(at::MemoryFormat::ChannelsLast);
  const auto symbols = [](at::IntArrayRef values) { return c10::fromIntArrayRefSlow(values); };
  std::optional<UnderPolicy> requested;
  const auto torch = [&] {
    const at::AutoDispatchBelowADInplaceOrView below;
    at::Tensor result = requested ? by_packed(*requested, input, weight) : at::Tensor();
    if (!result.defined())
      result = Previous<Place::cpu, at::_ops::convolution>::call(
          input, weight, std::nullopt, symbols(stride), symbols(padding), symbols(dilation), false, symbols(none), groups);
    return finish(result, finishing);
  };
  Policy taken = policy_at(Place::cpu);
  if (!taken) return torch();
  requested.emplace(std::move(taken), input, weight, symbols(stride), symbols(padding), symbols(dilation), false, symbols(none), groups);
  requested->finishes = true;
  if (requested->call) {
    ConvCall& call = *requested->call;
    call.channels_last = 1;
    call.activation = int32_t(how.activation), call.adds_last = finishing.other.defined() && how.adds_last;
    call.has_scale = finishing.scale.defined(), call.has_shift = finishing.shift.defined(), call.has_other = finishing.other.defined();
  }
  return forward(*requested, input, weight, std::nullopt, torch, &finishing);
}

}  // namespace

void install_finished() {
  static auto* const defined = new torch::Library(torch::Library::FRAGMENT, "msctx", std::nullopt, __FILE__, __LINE__);
  defined->def(
      "convolution(Tensor input, Tensor weight, str how, Tensor? scale, Tensor? shift, Tensor? mean, Tensor? variance, Tensor? other, "
      "float low, float high, float epsilon) -> Tensor");
  library("msctx", c10::DispatchKey::CPU).impl("convolution", TORCH_FN(finished_convolution));
}

template <Place place>
void install_convolutions(c10::DispatchKey key, OurKernels& kernels) {
  devices[int(place)] = c10::dispatchKeyToDeviceType(key);
  Previous<place, at::_ops::convolution>::replace(key, torch::CppFunction(TORCH_FN(convolution<place>)), &kernels);
  Previous<place, at::_ops::_convolution>::replace(key, torch::CppFunction(TORCH_FN(traced_convolution<place>)), &kernels);
  Previous<place, at::_ops::convolution_backward>::replace(key, torch::CppFunction(TORCH_FN(convolution_backward<place>)), &kernels);
}
template void install_convolutions<Place::cpu>(c10::DispatchKey, OurKernels&);
template void install_convolutions<Place::cuda>(c10::DispatchKey, OurKernels&);

}  // namespace msctx::glue
