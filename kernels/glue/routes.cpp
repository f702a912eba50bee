#include "glue/hook.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/ops/_safe_softmax.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/linear_ops.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <cmath>
#include <ranges>
#include <string_view>

#include "glue/tensors.h"

namespace msctx::glue {
namespace {

// Attention as products, softmax and sums of rows, of batches x heads x positions x values.
at::Tensor weights_of(
    const at::Tensor& query, const at::Tensor& key, bool is_causal, const std::optional<at::Tensor>& mask, double scale, at::Tensor* sums) {
  at::Tensor scores = at::matmul(query, key.transpose(-2, -1)).mul_(scale);
  if (mask && mask->defined()) scores.add_(*mask);
  if (is_causal) scores.masked_fill_(at::ones({query.size(-2), key.size(-2)}, query.options().dtype(at::kBool)).triu_(1), -INFINITY);
  if (sums) *sums = scores.logsumexp(-1).masked_fill_(scores.amax(-1).eq(-INFINITY), 0.0);  // as torch's kernels have it where all is masked
  return at::_safe_softmax(scores, -1);
}
double scale_of(const at::Tensor& query, std::optional<double> scale) { return scale ? *scale : 1.0 / std::sqrt(double(query.size(-1))); }
// Heads of keys and values, each as often as there are heads of queries for it; and the sum of a gradient over these.
at::Tensor repeated(const at::Tensor& t, const at::Tensor& query) {
  return t.size(1) == query.size(1) ? wide(t) : wide(t).repeat_interleave(query.size(1) / t.size(1), 1);
}
at::Tensor summed(const at::Tensor& grad, const at::Tensor& t) {
  return t.size(1) == grad.size(1) ? grad : grad.unflatten(1, {t.size(1), -1}).sum(2);
}
// As torch's kernels lay it: with positions before heads.
at::Tensor laid(const at::Tensor& t, const at::Tensor& as) { return t.to(as.scalar_type()).transpose(1, 2).contiguous().transpose(1, 2); }

std::tuple<at::Tensor, at::Tensor> attention(
    const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, double dropout, bool is_causal,
    const std::optional<at::Tensor>& mask, std::optional<double> scale) {
  TORCH_CHECK(query.dim() == 4 && dropout == 0.0, "attention of 4 axes without dropout only");
  at::Tensor sums;
  const at::Tensor weights = weights_of(wide(query), repeated(key, query), is_causal, mask, scale_of(query, scale), &sums);
  return {at::empty_like(query).copy_(at::matmul(weights, repeated(value, query))), laid(sums, sums)};
}

// softmax's own gradient depends on the number of threads.
Three attention_backward(
    const at::Tensor& grad, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const at::Tensor& out,
    const at::Tensor&, double, bool is_causal, const std::optional<at::Tensor>& mask, std::optional<double> scale) {
  const at::Tensor q = wide(query), k = repeated(key, query), g = wide(grad.contiguous());
  const double factor = scale_of(query, scale);
  const at::Tensor weights = weights_of(q, k, is_causal, mask, factor, nullptr);
  const at::Tensor of_weights = at::matmul(g, repeated(value, query).transpose(-2, -1)), sums = (g * wide(out.contiguous())).sum(-1, true);
  const at::Tensor of_scores = (of_weights - sums).mul_(weights).mul_(factor), across = of_scores.transpose(-2, -1);
  const at::Tensor of_keys = summed(at::matmul(across, q), key), of_values = summed(at::matmul(weights.transpose(-2, -1), g), value);
  return {laid(at::matmul(of_scores, k), query), laid(of_keys, key), laid(of_values, value)};
}

// One direction of a layer of an LSTM, step by step. Torch's sigmoid depends on a value's place in its row: it is 0.5 tanh(x / 2) + 0.5 here.
struct Lstm {
  at::Tensor of_input, of_state;
  std::optional<at::Tensor> bias_of_input, bias_of_state, projection;

  Lstm(at::TensorList given, bool has_biases) : of_input(wide(given[0])), of_state(wide(given[1])) {
    if (has_biases) bias_of_input = wide(given[2]), bias_of_state = wide(given[3]);
    if (const size_t first = has_biases ? 4 : 2; given.size() > first) projection = wide(given[first]);
  }
  at::Tensor rows(const at::Tensor& input) const { return at::linear(wide(input), of_input, bias_of_input); }
  void step(const at::Tensor& row, at::Tensor& h, at::Tensor& c) const {
    const auto sigmoid = [](const at::Tensor& t) { return t.mul(0.5).tanh().mul(0.5).add(0.5); };
    const auto gates = (row + at::linear(h, of_state, bias_of_state)).chunk(4, 1);
    c = sigmoid(gates[1]) * c + sigmoid(gates[0]) * gates[2].tanh();
    h = sigmoid(gates[3]) * c.tanh();
    if (projection) h = at::linear(h, *projection);
  }
};

// An LSTM over sequences of several lengths, the longest first: each step has so many rows as `sizes` says.
Three lstm_of_rows(
    const at::Tensor& data, at::IntArrayRef sizes, at::TensorList hx, at::TensorList parameters, bool has_biases, int64_t layers,
    double dropout, bool train, bool bidirectional) {
  const int64_t directions = bidirectional ? 2 : 1, count = parameters.size() / (layers * directions);
  const auto type = data.scalar_type();
  at::Tensor input = data;
  std::vector<at::Tensor> last[2];  // h and c
  for (int64_t layer = 0; layer < layers; layer++) {
    if (layer && train && dropout > 0) input = at::dropout(input, dropout, true);
    std::vector<at::Tensor> results;
    for (int64_t n = layer * directions; n < (layer + 1) * directions; n++) {
      const Lstm lstm(parameters.slice(n * count, count), has_biases);
      const bool reverse = n % directions == 1;
      std::vector<at::Tensor> steps = lstm.rows(input).split_with_sizes(sizes), ended[2];
      const at::Tensor first[2] = {wide(hx[0][n]), wide(hx[1][n])};
      at::Tensor state[2] = {first[0].narrow(0, 0, 0), first[1].narrow(0, 0, 0)};
      for (size_t i = 0; i < steps.size(); i++) {
        at::Tensor& step = steps[reverse ? steps.size() - 1 - i : i];
        const int64_t rows = step.size(0), before = state[0].size(0);
        for (int k = 0; k < 2; k++) {
          if (rows < before) ended[k].push_back(state[k].narrow(0, rows, before - rows)), state[k] = state[k].narrow(0, 0, rows);
          if (rows > before) state[k] = at::cat({state[k], first[k].narrow(0, before, rows - before)});
        }
        lstm.step(step, state[0], state[1]);
        step = state[0];
      }
      for (int k = 0; k < 2; k++) {
        ended[k].push_back(state[k]);
        std::ranges::reverse(ended[k]);
        last[k].push_back(at::cat(ended[k]).to(type));
      }
      results.push_back(at::cat(steps).to(type));
    }
    input = at::cat(results, -1);
  }
  return {input, at::stack(last[0]), at::stack(last[1])};
}

Three packed_lstm(
    const at::Tensor& data, const at::Tensor& batch_sizes, at::TensorList hx, at::TensorList parameters, bool has_biases, int64_t layers,
    double dropout, bool train, bool bidirectional) {
  const at::IntArrayRef sizes(batch_sizes.const_data_ptr<int64_t>(), batch_sizes.numel());
  return lstm_of_rows(data, sizes, hx, parameters, has_biases, layers, dropout, train, bidirectional);
}

Three lstm(
    const at::Tensor& given, at::TensorList hx, at::TensorList parameters, bool has_biases, int64_t layers, double dropout, bool train,
    bool bidirectional, bool batch_first) {
  const at::Tensor input = batch_first ? given.transpose(0, 1) : given;
  const std::vector<int64_t> sizes(size_t(input.size(0)), input.size(1));
  auto [output, h, c] =
      lstm_of_rows(input.reshape({-1, input.size(2)}), sizes, hx, parameters, has_biases, layers, dropout, train, bidirectional);
  output = output.view({input.size(0), input.size(1), -1});
  return {batch_first ? output.transpose(0, 1) : output, h, c};
}

// Whether the states and weights are as many as an LSTM has, and there are values. Of other calls torch has the result or the error.
bool is_whole_lstm(at::ArrayRef<c10::IValue> arguments) {
  const bool is_packed = arguments[1].isTensor();
  const auto given = arguments.slice(is_packed ? 2 : 1);
  const auto hx = given[0].toTensorVector();
  const int64_t cells = given[3].toInt() * (given[6].toBool() ? 2 : 1);
  const auto has_cells = [&](const at::Tensor& state) { return state.dim() == 3 && state.size(0) == cells; };
  if (arguments[0].toTensor().dim() != (is_packed ? 2 : 3) || arguments[0].toTensor().numel() == 0) return false;
  if (hx.size() != 2 || cells < 1 || !std::ranges::all_of(hx, has_cells)) return false;
  const int64_t has_projection = hx[0].size(2) != hx[1].size(2);
  return int64_t(given[1].toTensorVector().size()) == cells * ((given[2].toBool() ? 4 : 2) + has_projection);
}

template <auto* function>
const c10::KernelFunction& composed() {
  using Pointer = c10::CompileTimeFunctionPointer<std::remove_pointer_t<decltype(function)>, function>;
  static const auto kernel = c10::KernelFunction::makeFromUnboxedFunction(Pointer());
  return kernel;
}

constexpr c10::DispatchKeySet dense({c10::DispatchKey::CPU, c10::DispatchKey::MkldnnCPU});
constexpr c10::DispatchKeySet sparse({c10::DispatchKey::SparseCPU, c10::DispatchKey::SparseCsrCPU});
constexpr c10::DispatchKeySet either({c10::DispatchKey::CPU, c10::DispatchKey::AutogradCPU});  // torch makes it of others at all keys

// Operators that compute matmuls without those that are hooked (see product.cpp), and at which keys. Under an invariance
// `composed` makes one of hooked ones.
struct OfTorch {
  std::string_view name;
  c10::DispatchKeySet keys = dense;
  const c10::KernelFunction& (*composed)() = nullptr;
  std::string_view overload = "";  // this one alone
};
constexpr OfTorch products_of_torch[] = {
    {"aten::_scaled_dot_product_flash_attention_for_cpu", dense, composed<attention>},
    {"aten::_scaled_dot_product_flash_attention_for_cpu_backward", dense, composed<attention_backward>},
    {"aten::lstm", either, composed<lstm>, "input"}, {"aten::lstm", either, composed<packed_lstm>, "data"}, {"aten::mkldnn_rnn_layer"},
    {"aten::mkldnn_rnn_layer_backward"}, {"aten::mkldnn_linear"}, {"aten::mkldnn_linear_backward"}, {"aten::mkldnn_linear_backward_input"},
    {"aten::mkldnn_linear_backward_weights"}, {"aten::_weight_int8pack_mm"}, {"aten::_weight_int4pack_mm_for_cpu"},
    {"aten::_dyn_quant_matmul_4bit"}, {"aten::_scaled_mm"}, {"aten::_scaled_mm_v2"}, {"aten::_int_mm"}, {"aten::quantized_lstm"}, {"aten::quantized_gru"},
    {"aten::fbgemm_linear_fp16_weight"}, {"aten::fbgemm_linear_fp16_weight_fp32_activation"}, {"aten::fbgemm_linear_int8_weight"},
    {"aten::fbgemm_linear_int8_weight_fp32_activation"}, {"aten::mm", sparse}, {"aten::addmm", sparse}, {"aten::addmm_", sparse},
    {"aten::bmm", sparse}, {"aten::mv", sparse}, {"aten::addmv", sparse}, {"aten::addmv_", sparse}, {"aten::hspmm", sparse},
    {"aten::sspaddmm", sparse}, {"aten::_sparse_sparse_matmul", sparse}, {"aten::sparse_sampled_addmm", sparse},
    {"aten::_sparse_mm_reduce_impl", sparse}, {"aten::_sparse_mm_reduce_impl_backward", sparse}};

const OfTorch* row_of(std::string_view name, std::string_view overload = "") {
  const auto is_of = [&](const OfTorch& row) { return row.name == name && (row.overload.empty() || row.overload == overload); };
  const auto found = std::ranges::find_if(products_of_torch, is_of);
  return found == std::end(products_of_torch) ? nullptr : found;
}

bool is_product(const std::string& name) {
  const auto has = [&](const char* part) { return name.find(part) != std::string::npos; };
  return row_of(name) || (!has("aten::") && !has("conv") && (has("linear") || has("_cell_dynamic") || has("int4mm")));
}

// What torch's aten::convolution calls often is none: aten::mkldnn_convolution of dense tensors, cudnn_convolution, slow_conv2d and its like.
bool is_route(const c10::OperatorName& op, c10::DispatchKey key) {
  const auto has = [&](const char* part) { return op.name.find(part) != std::string::npos; };
  if (const OfTorch* row = row_of(op.name, op.overload_name)) return row->keys.has(key);
  if (sparse.has(key) || key == c10::DispatchKey::AutogradCPU) return false;
  if (has("aten::")) {
    if (key == c10::DispatchKey::MkldnnCPU) return op.name == "aten::convolution" || op.name == "aten::mkldnn_convolution";
    const bool is_fused = op.name == "aten::cudnn_convolution_relu" || op.name == "aten::cudnn_convolution_add_relu";
    return op.name == "aten::conv_tbc" || (is_fused && op.overload_name.empty());  // their out= calls them
  }
  if (!has("mkldnn") && !has("mkl::") && !has("quantized::") && !has("onednn::") && !has("prepacked::") && !has("sparse::")) return false;
  for (const char* part : {"pack", "reorder", "_stride", "_padding", "_dilation", "_groups", "d_transpose"})
    if (op.name.find(part, op.name.find("::")) != std::string::npos && !has("packed_weight") && !has("linear_prepacked"))
      return false;  // packing weights, asking for parameters
  return has("conv") || is_product(op.name);
}

bool is_sparse(const at::Tensor& t) { return t.defined() && t.layout() != at::kStrided && t.layout() != at::kMkldnn; }
bool is_requested(Place place) { return inside_torch == 0 && in_force(place); }

bool is_invariant(Place place) {
  const Policy policy = policy_at(place);
  return policy && policy->thread_invariant;
}

void count_route(Place place, const std::string& name, bool is_backward, const at::Tensor& input, const at::Tensor& weight) {
  const Policy policy = policy_at(place);
  if (!policy) return;
  const bool is_quantized = input.defined() && input.is_quantized(), of_products = is_product(name);
  const bool of_sparse = is_sparse(input) || is_sparse(weight);
  const std::string reason =
      name + (of_sparse ? " of sparse tensors" : "") +
      (!is_quantized ? " is a separate operator" : of_products ? " is not a float matmul" : " is not a float convolution") +
      ": algorithms of msctx do not apply to it";
  for (const Direction direction : {Direction::fprop, Direction::dgrad, Direction::wgrad, Direction::matmul})
    if (of_products ? direction == Direction::matmul : direction != Direction::matmul && is_backward == (direction != Direction::fprop))
      refuse(*policy, direction, refused(*policy, direction, reason, input, weight, of_sparse ? "sparse" : "packed"));
}

// The boxed kernel of a route at a key.
class Route : public c10::OperatorKernel {
 public:
  Route(const c10::OperatorHandle& op, Place place, c10::DispatchKey key)
      : place_(place), row_(row_of(op.schema().name(), op.schema().overload_name())),
        is_above_autograd_(row_ && row_->keys == either), before_(in_table(op, key)) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    bool is_requested_here = is_requested(place_);
    const bool is_kept = is_requested_here && row_ && is_invariant(place_);
    if (is_kept && row_->composed && (!is_above_autograd_ || is_whole_lstm(torch::jit::last(*stack, op.schema().arguments().size()))))
      return row_->composed().callBoxed(op, keys, stack);
    if (row_ && row_->keys == sparse) is_requested_here = is_kept;  // algorithms are for dense products alone
    if (is_above_autograd_) return before_.callBoxed(op, keys, stack);
    if (is_requested_here) {
      std::vector<at::Tensor> found(3);
      for (const auto& argument : torch::jit::last(*stack, op.schema().arguments().size()))
        if (argument.isTensor()) found.insert(found.end() - 3, argument.toTensor());
      const std::string& name = op.schema().name();
      const bool is_backward = name.find("backward") != std::string::npos;  // its gradient comes first
      const bool adds = name.find("add") != std::string::npos;              // and so does what is added
      count_route(place_, name, is_backward, found[is_backward || adds], found[(is_backward || adds) + 1]);
    }
    const InsideTorch guard;
    before_.callBoxed(op, keys, stack);
  }

 private:
  const Place place_;
  const OfTorch* const row_;
  const bool is_above_autograd_;  // what it is made of is hooked
  const c10::KernelFunction before_;
};

// A linear layer of 16 bits whose input is not contiguous: torch rounds its products before it adds the bias, and for one row it does not.
at::Tensor linear(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias) {
  using Torchs = Previous<Place::cpu, at::_ops::linear>;
  const bool is_rounded = input.dim() > 2 && input.element_size() == 2 && !input.is_contiguous() && is_requested(Place::cpu) && is_invariant(Place::cpu);
  return Torchs::kernel.call<at::Tensor, const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&>(
      *Torchs::op, Torchs::keys, is_rounded ? input.contiguous() : input, weight, bias);
}

}  // namespace

void install_routes(Place place, const std::vector<c10::DispatchKey>& keys) {
  // The last key first, autograd's: with a kernel at the other, torch's own there would not be what makes the operator of others
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames())
    for (const c10::DispatchKey key : std::views::reverse(keys))
      if (is_route(name, key))
        if (const auto op = c10::Dispatcher::singleton().findSchema(name); op && op->hasComputedKernelForDispatchKey(key))
          implement(*op, key, torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Route>(*op, place, key)));
  for (const auto key : {c10::DispatchKey::AutogradCPU, c10::DispatchKey::CPU})
    if (place == Place::cpu) Previous<Place::cpu, at::_ops::linear>::replace(key, torch::CppFunction(TORCH_FN(linear)));
}

}  // namespace msctx::glue
