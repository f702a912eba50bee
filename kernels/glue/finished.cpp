// msctx::convolution where torch computes it.
#include "glue/finished.h"

#include <ATen/Context.h>
#include <ATen/core/LegacyTypeDispatch.h>

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

const char* name_of(Activation activation) {
  return activation == Activation::silu ? "swish" : activation == Activation::sigmoid ? "sigmoid" : "hardswish";
}

at::Tensor called(const c10::OperatorHandle& op, torch::jit::Stack stack) {
  op.callBoxed(stack);
  return stack[0].toTensor();
}

void finish(const at::Tensor& result, const at::Tensor& other, Epilogue how) {
  if (other.defined()) how.other = other.const_data_ptr<float>();
  table_in_use().passes->finish(
      how, result.data_ptr<float>(), result.size(0), result.size(1), result.size(2) * result.size(3), true, threads_of_torch());
}

at::Tensor by_onednn(
    const OneDnn& dnn, const Policy& policy, const at::Tensor& input, const at::Tensor& weight, const Geometry& g, const Finishing& f) {
  std::string what = "onednn";
  for (const at::IntArrayRef numbers : {input.sizes(), weight.sizes(), g.stride, g.padding, g.dilation})
    what += '|' + joined(numbers);
  const at::Tensor packed = kept_tensor(
      policy, weight, f.scale, what + '|' + std::to_string(g.groups), threads_of_torch(), policy.frozen_weights, [&] {
        const at::Tensor scaled = f.scale.defined() ? weight.mul(f.scale.view({-1, 1, 1, 1})) : weight;
        return called(*dnn.pack, {scaled.contiguous(), g.padding.vec(), g.stride.vec(), g.dilation.vec(), g.groups, input.sizes().vec()});
      });
  const std::optional<at::Tensor> shift = f.shift.defined() ? std::optional(f.shift) : std::nullopt;
  using Scalars = c10::List<std::optional<at::Scalar>>;
  const Activation activation = f.how.activation;
  if (f.other.defined() && activation == Activation::none)
    return called(
        *dnn.run_and_add, {input, f.other.contiguous(last), packed, shift, g.padding.vec(), g.stride.vec(), g.dilation.vec(), g.groups, "add",
                           at::Scalar(1.0), c10::IValue(), Scalars(), c10::IValue()});
  // oneDNN's relu, clamp and hardsigmoid make numbers of NaN; and where the addition comes first, it has none.
  const bool keeps_nan = activation == Activation::silu || activation == Activation::sigmoid || activation == Activation::hardswish;
  const bool activates = keeps_nan && (!f.other.defined() || f.how.adds_last);
  const at::Tensor result = called(
      *dnn.run, {input, packed, shift, g.padding.vec(), g.stride.vec(), g.dilation.vec(), g.groups, activates ? name_of(activation) : "none",
                 Scalars(), c10::IValue()});
  if (!f.other.defined() && (activates || activation == Activation::none)) return result;
  Epilogue rest = f.how;
  if (activates) rest.activation = Activation::none;
  const at::Tensor dense = result.contiguous(last);
  finish(dense, f.other.defined() ? f.other.contiguous(last) : f.other, rest);
  return dense;
}

}  // namespace

at::Tensor finished_by_torch(
    const Policy* policy, const at::Tensor& input, const at::Tensor& weight, const Geometry& g, const Finishing& f,
    const std::function<at::Tensor()>& convolution) {
  static const OneDnn dnn;
  const InsideTorch guard;
  const at::AutoDispatchBelowADInplaceOrView below;
  if (policy && dnn.is_there()) return by_onednn(dnn, *policy, input, weight, g, f).contiguous(last);
  const at::Tensor result = convolution().contiguous(last);
  Epilogue how = f.how;
  if (f.scale.defined()) how.scale = f.scale.const_data_ptr<float>();
  if (f.shift.defined()) how.shift = f.shift.const_data_ptr<float>();
  finish(result, f.other.defined() ? f.other.contiguous(last) : f.other, how);
  return result;
}

void install_finished() {
  static auto* const defined = new torch::Library(torch::Library::FRAGMENT, "msctx", std::nullopt, __FILE__, __LINE__);
  defined->def(
      "convolution(Tensor input, Tensor weight, int[] stride, int[] padding, int[] dilation, int groups, Tensor? scale, Tensor? shift, "
      "Tensor? other, str activation, float low, float high, bool adds_last) -> Tensor");
  library("msctx", c10::DispatchKey::CPU).impl("convolution", TORCH_FN(finished_convolution));
}

}  // namespace msctx::glue
