// Matrix products under a policy: a product is a convolution with a window of 1x1, see Direction::matmul.
#include "glue/hook.h"

#include <ATen/ExpandUtils.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_addmm_activation_ops.h>
#include <ATen/ops/addmm_ops.h>
#include <ATen/ops/addmv_ops.h>
#include <ATen/ops/baddbmm_ops.h>
#include <ATen/ops/bmm_ops.h>
#include <ATen/ops/dot_ops.h>
#include <ATen/ops/gelu_ops.h>
#include <ATen/ops/matmul_backward_ops.h>
#include <ATen/ops/matmul_native.h>
#include <ATen/ops/matmul_ops.h>
#include <ATen/ops/mm_ops.h>
#include <ATen/ops/mv_ops.h>
#include <ATen/ops/relu_ops.h>
#include <torch/csrc/autograd/function.h>

#include <cmath>
#include <string_view>

#include "glue/tensors.h"

namespace msctx::glue {
namespace {

constexpr Direction matmul = Direction::matmul;
bool is_at(Place place, const at::Tensor& t) { return t.device().type() == (place == Place::cpu ? at::kCPU : at::kPrivateUse1); }
// Rows are cut into images of this width: what algorithms for AMX take together.
constexpr int64_t width = 32;
bool takes_images(const ConvRow& row) { return row.algorithm->prepare && !row.algorithm->prepared_if_kept; }

bool is_inference() { return !at::GradMode::is_enabled() && !::torch::autograd::get_current_node(); }

enum class Kind { matrices, batches, vector };
enum class After { none, relu, gelu };  // of _addmm_activation

// beta * added + alpha * left @ right, as an operator is given it.
struct Terms {
  const at::Tensor &left, &right;
  const at::Tensor* added = nullptr;
  at::Scalar beta = 0, alpha = 1;
  After activation = After::none;
  const at::Tensor* out = nullptr;  // what an operator was given for the result

  bool adds() const { return added && beta.toDouble() != 0.0; }
  bool scales() const { return alpha.toDouble() != 1.0; }
};

template <class... Out>
Terms terms_of(const at::Tensor& left, const at::Tensor& right, Out&...) {
  return {left, right};
}
template <class... More>
Terms terms_of(
    const at::Tensor& added, const at::Tensor& left, const at::Tensor& right, const at::Scalar& beta, const at::Scalar& alpha,
    More&... more) {
  Terms found{left, right, &added, beta, alpha};
  (([&] { if constexpr (std::is_same_v<More, bool>) found.activation = more ? After::gelu : After::relu; }()), ...);
  return found;
}

// torch's own path of it, without a tensor that is given for the result.
at::Tensor by_torch(Kind kind, const Terms& t) {
  const InsideTorch inside;
  const at::AutoDispatchBelowADInplaceOrView below;
  if (t.activation != After::none)
    return at::_ops::_addmm_activation::call(*t.added, t.left, t.right, t.beta, t.alpha, t.activation == After::gelu);
  switch (kind) {
    case Kind::batches:
      return t.added ? at::_ops::baddbmm::call(*t.added, t.left, t.right, t.beta, t.alpha) : at::_ops::bmm::call(t.left, t.right);
    case Kind::vector:
      return t.added ? at::_ops::addmv::call(*t.added, t.left, t.right, t.beta, t.alpha) : at::_ops::mv::call(t.left, t.right);
    default: return t.added ? at::_ops::addmm::call(*t.added, t.left, t.right, t.beta, t.alpha) : at::_ops::mm::call(t.left, t.right);
  }
}

void lay(ConvProblem& p, int64_t height, int64_t across) {
  p.in[1] = p.out[1] = height;
  p.in[2] = p.out[2] = across;
}

// A product that is ours to compute, in plain numbers.
class Product {
 public:
  Product(Place place, Kind kind, const Terms& t, const Taken& policy) : place_(place), kind_(kind), t_(t) {
    const at::Tensor &a = t.left, &b = t.right;
    const bool has_batches = kind == Kind::batches;
    if (a.dim() != (has_batches ? 3 : 2) || b.dim() != (kind == Kind::vector ? 1 : a.dim())) return;
    if (!is_ours(a) || !is_ours(b) || a.scalar_type() != b.scalar_type() || t.alpha.isComplex() || t.beta.isComplex()) return;
    batches_ = has_batches ? a.size(0) : 1;
    rows_ = a.size(-2), depth_ = a.size(-1), columns_ = kind == Kind::vector ? 1 : b.size(-1);
    if (b.size(has_batches ? 1 : 0) != depth_ || (has_batches && b.size(0) != batches_)) return;
    for (const int64_t size : {batches_, rows_, depth_, columns_})
      if (size == 0 || size > int64_t(1) << 30) return;
    if (t.added && (!is_ours(*t.added) || t.added->scalar_type() != a.scalar_type() || !at::is_expandable_to(t.added->sizes(), sizes()))) return;
    if (t.alpha.toDouble() == 0.0) return;

    // Sixteen bits are computed in float32 and rounded once, after what is added or scaled by.
    wide_ = a.element_size() == 2;
    right_transposed_ = kind == Kind::vector || (b.stride(-2) == 1 && b.stride(-1) != 1);
    const bool left_transposed = a.stride(-2) == 1 && a.stride(-1) != 1;
    describe(left_transposed, *dtype_of(a), policy);
    call_.batches = has_batches ? batches_ : 0;
    // MKL's strict mode: not of a vector, nor, whatever the batch, of batches.
    if (kind == Kind::vector || (has_batches && policy.batch_invariant)) call_.torch_keeps_bits = 0;
    const std::string* const module = has_batches ? nullptr : module_of(b, false);
    call_.module = module ? module->c_str() : nullptr;
    call_.device = larger(0, a.device().index());
    call_.keeps_weight = place == Place::cpu && kind == Kind::matrices && keeps_weight(policy, b);
    is_valid_ = true;
  }

  bool is_valid() const { return is_valid_; }
  const ConvCall& call() const { return call_; }
  std::vector<int64_t> sizes() const {
    if (kind_ == Kind::batches) return {batches_, rows_, columns_};
    return kind_ == Kind::vector ? std::vector{rows_} : std::vector{rows_, columns_};
  }

  // The whole result by a row.
  at::Tensor run(const Taken& policy, const ConvRow& row, Ran& ran) const {
    if (place_ == Place::ascend) return on_npu(row);
    at::Tensor result = t_.scales() ? scaled(policy, row, ran) : product(policy, row, wide(t_.left), ran);
    result = result.view(sizes());
    // The factor by itself: torch's loops join it to the addition for some elements, by their place.
    if (t_.adds() && !adds_bias()) result.add_(t_.beta.toDouble() == 1.0 ? wide(*t_.added) : wide(*t_.added).mul(t_.beta));
    if (t_.activation == After::relu) result.relu_();
    if (t_.activation == After::gelu) result = at::_ops::gelu::call(result, "none");
    return wide_ ? result.to(t_.left.scalar_type()) : result;
  }

 private:
  void describe(bool left_transposed, DType dtype, const Taken& policy) {
    ConvProblem& p = call_.problem;
    p.dims = 2;
    p.dtype = dtype;
    p.n = p.groups = 1;
    p.c = right_transposed_ ? depth_ : columns_, p.k = right_transposed_ ? columns_ : depth_;
    for (int i = 0; i < 3; i++) p.in[i] = p.out[i] = p.window[i] = p.stride[i] = p.dilation[i] = 1;
    lay(p, divide_up(rows_, width), rows_ > width ? width : rows_);
    call_.rows = rows_;
    call_.left_transposed = left_transposed;
    call_.transposed = !right_transposed_;
    call_.channels_last = 1;
    call_.torch_keeps_bits = policy.torch_keeps_products && (dtype == DType::f32 || dtype == DType::f64);
    const at::Context& torch = at::globalContext();
    call_.torch_is_deterministic = torch.deterministicAlgorithms() && !torch.deterministicAlgorithmsWarnOnly();
  }
  bool is_ours(const at::Tensor& t) const {
    return t.defined() && t.layout() == at::kStrided && is_at(place_, t) && t.has_storage() && dtype_of(t) && !t.is_neg();
  }
  at::Tensor on_npu(const ConvRow& row) const {
    if (!computes_from_halves(row)) return by_torch(kind_, t_);
    at::Tensor result = product_of_halves(t_.left, kind_ == Kind::vector ? t_.right.unsqueeze(1) : t_.right).view(sizes());
    if (t_.scales()) result.mul_(t_.alpha);
    if (t_.adds()) result.add_(*t_.added, t_.beta);
    if (t_.activation == After::relu) result.relu_();
    return t_.activation == After::gelu ? at::_ops::gelu::call(result, "none") : result;
  }

  // Whether what is added is a value for each column.
  bool adds_bias() const {
    if (!t_.adds() || t_.beta.toDouble() != 1.0 || t_.scales() || kind_ != Kind::matrices) return false;
    return t_.added->scalar_type() == at::kFloat && t_.added->dim() == 1 && t_.added->size(0) == columns_;
  }

  // Whether the product may be computed where the operator's result is to be.
  bool is_computed_in_place() const {
    if (!t_.out || kind_ != Kind::matrices || wide_ || t_.scales()) return false;
    if (!t_.out->is_contiguous() || t_.out->is_neg() || t_.out->sizes() != sizes()) return false;
    // By addresses: from_numpy and DLPack make several storages of the same memory.
    const auto first = [](const at::Tensor& t) { return static_cast<const char*>(storage_of(t)->data()); };
    const auto last = [&](const at::Tensor& t) { return first(t) + storage_of(t)->nbytes(); };
    const auto is_apart = [&](const at::Tensor& t) { return last(t) <= first(*t_.out) || last(*t_.out) <= first(t); };
    return is_apart(t_.left) && is_apart(t_.right) && (!t_.added || is_apart(*t_.added));
  }

  at::Tensor product(const Taken& policy, const ConvRow& row, const at::Tensor& a, Ran& ran) const {
    const at::Tensor b = wide(kind_ == Kind::vector ? t_.right.unsqueeze(1) : t_.right);
    if (kind_ != Kind::batches) return one(policy, row, a, b, ran);
    at::Tensor result = at::empty(sizes(), a.options());
    if (row.algorithm->reads_channels_last && !takes_images(row))
      side_by_side(policy, row, a.contiguous(), (right_transposed_ ? b.transpose(1, 2) : b).contiguous(), result);
    else
      for (int64_t i = 0; i < batches_; i++) result.select(0, i).copy_(one(policy, row, a.select(0, i), b.select(0, i), ran));
    return result;
  }

  // alpha times the product. Small factors apply to sums and large ones to the left factor, which keeps more of denormal values; but that
  // may overflow where the result does not: such elements, by themselves, are scaled the other way.
  at::Tensor scaled(const Taken& policy, const ConvRow& row, Ran& ran) const {
    const at::Tensor a = wide(t_.left);
    const auto by = [&](bool before) {
      return before ? product(policy, row, a.mul(t_.alpha), ran) : product(policy, row, a, ran).mul_(t_.alpha);
    };
    const bool before = std::abs(t_.alpha.toDouble()) > 1.0;
    const at::Tensor result = by(before);
    if (std::isfinite(result.sum().item<double>())) return result;
    return result.where(result.isfinite(), by(!before));
  }

  at::Tensor one(const Taken& policy, const ConvRow& row, const at::Tensor& a, const at::Tensor& b, Ran& ran) const {
    ConvCall call = call_;
    ConvProblem& p = call.problem;
    if (wide_) p.dtype = DType::f32;
    const bool padded = takes_images(row) && rows_ % p.in[2] != 0;
    if (!takes_images(row)) lay(p, 1, rows_);
    const int64_t height = p.in[1], across = p.in[2];
    at::Tensor left = a;
    if (padded) {
      left = at::zeros({height * across, depth_}, a.options());
      left.narrow(0, 0, rows_).copy_(a);
    }
    const int64_t down = left.stride(0), step = left.stride(1);
    const at::Tensor image = left.as_strided({1, depth_, height, across}, {height * across * down, step, across * down, down});
    const at::Tensor weight = (right_transposed_ ? b.t() : b).unsqueeze(2).unsqueeze(3);
    const Finishing bias{{}, adds_bias() ? t_.added->contiguous() : at::Tensor(), {}, {}};
    // In inference, where a right factor is a weight most often: activations would only push weights out.
    const bool may_be_weight = kind_ == Kind::matrices && is_inference();
    const auto kept = may_be_weight ? kept_as(policy, t_.right) : Weight::fresh;
    const c10::SmallVector<int64_t, 4> sizes{1, columns_, height, across}, strides{rows_ * columns_, 1, across * columns_, columns_};
    const at::Tensor into = !padded && is_computed_in_place() ? t_.out->as_strided(sizes, strides) : at::Tensor();
    const at::Tensor found =
        run_row(policy, row, call, image, weight, at::MemoryFormat::ChannelsLast, adds_bias() ? &bias : nullptr, kept, ran, into);
    const at::Tensor all = found.permute({0, 2, 3, 1}).reshape({height * across, columns_});
    return padded ? all.narrow(0, 0, rows_).clone() : all;
  }

  // Batches by a row that needs nothing but the factors as they lie: each on one thread, where they are many, or small, since several
  // would not pay.
  void side_by_side(const Taken& policy, const ConvRow& row, const at::Tensor& a, const at::Tensor& b, const at::Tensor& result) const {
    ConvProblem p = call_.problem;
    if (wide_) p.dtype = DType::f32;
    lay(p, 1, rows_);
    const Op op = op_of(matmul, call_.transposed);
    const int64_t each = rows_ * depth_ * columns_;
    const auto at_batch = [](const at::Tensor& t, int64_t i) { return static_cast<char*>(t.data_ptr()) + i * t.stride(0) * t.element_size(); };
    const auto compute = [&](int64_t begin, int64_t end) {
      const Parallel threads = threads_of_torch();
      for (int64_t i = begin; i < end; i++) {
        ConvTensors t = tensors_of(op, call_.transposed, at_batch(a, i), at_batch(b, i), at_batch(result, i));
        t.channels_last = true;
        glue::compute(policy, row, p, op, t, nullptr, threads);
      }
    };
    if (threads_of_torch().threads > 1 && (each < int64_t(1) << 20 || batches_ >= 4 * at::get_num_threads()))
      at::parallel_for(0, batches_, divide_up(int64_t(1) << 15, each), compute);
    else
      compute(0, batches_);
  }

  const Place place_;
  const Kind kind_;
  const Terms& t_;
  bool is_valid_ = false, wide_ = false, right_transposed_ = false;
  int64_t batches_ = 0, rows_ = 0, depth_ = 0, columns_ = 0;
  ConvCall call_{};
};

// What a policy makes of a product; undefined: torch is to compute it. `in_place`: what is added has the shape of the result.
at::Tensor computed(Place place, Kind kind, const Terms& terms, bool in_place = false) {
  const Policy policy = policy_at(place);
  if (!policy) return {};
  const Product product(place, kind, terms, *policy);
  if (policy->thread_invariant && terms.left.is_complex() && terms.left.numel() && !(kind == Kind::matrices && policy->torch_keeps_products))
    refuse(*policy, matmul, refused(*policy, matmul, "msctx computes no complex matmuls", terms.left, terms.right));
  if (!product.is_valid() || (in_place && terms.added->sizes() != product.sizes())) return {};
  const int threads = at::get_num_threads();
  const Decision* decision = decision_of(*policy, product.call(), matmul, threads);
  if (decision == nullptr) return {};
  complain(*policy, *decision, matmul);
  const InsideTorch inside;
  const at::AutoDispatchBelowADInplaceOrView below;
  const auto run = [&](const ConvRow* row) {
    Ran ran;
    row ? product.run(*policy, *row, ran) : by_torch(kind, terms);
    return ran.weights_prepared > 0;
  };
  if (decision->to_measure && !at::in_parallel_region()) decision = measured(*policy, product.call(), decision, matmul, threads, run);
  return by_row(*policy, *decision, matmul, [&](const ConvRow& row, Ran& ran) { return product.run(*policy, row, ran); });
}

// torch_npu has kernels of its own for matmul and its gradients, past mm and bmm: where an option names products, they are what torch makes
// of them on other devices.
struct matmul_double_backward {
  using schema = std::tuple<at::Tensor, at::Tensor, at::Tensor>(
      const std::optional<at::Tensor>&, const std::optional<at::Tensor>&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
      std::array<bool, 3>);
  static constexpr const char *name = "npu::matmul_double_backward", *overload_name = "";
};
template <class Op>
constexpr bool is_composed = std::string_view(Op::name).find("::matmul") != std::string_view::npos;

at::Tensor composed(const at::Tensor& a, const at::Tensor& b) { return at::native::matmul(a, b); }
at::Tensor& composed(const at::Tensor& a, const at::Tensor& b, at::Tensor& out) { return at::native::matmul_out(a, b, out); }
std::tuple<at::Tensor, at::Tensor> composed(const at::Tensor& grad, const at::Tensor& a, const at::Tensor& b, std::array<bool, 2> mask) {
  const at::Tensor left = a.dim() == 1 ? a.unsqueeze(0) : a, right = b.dim() == 1 ? b.unsqueeze(1) : b;
  at::Tensor g = b.dim() == 1 ? grad.unsqueeze(-1) : grad;
  if (a.dim() == 1) g = g.unsqueeze(-2);
  at::Tensor of_a, of_b;
  if (mask[0]) of_a = at::sum_to(at::native::matmul(g, right.mT()), left.sizes()).view(a.sizes());
  if (mask[1]) {
    const bool is_shared = right.dim() == 2;  // by all batches, which are rows then
    const at::Tensor rows = is_shared ? left.reshape({-1, left.size(-1)}) : left, sums = is_shared ? g.reshape({-1, g.size(-1)}) : g;
    of_b = at::sum_to(at::native::matmul(rows.mT(), sums), right.sizes()).view(b.sizes());
  }
  return {of_a, of_b};
}

// Of grad @ b^T and a^T @ grad, by what they are to be differentiated with: the gradients of grad, a and b.
std::tuple<at::Tensor, at::Tensor, at::Tensor> composed(
    const std::optional<at::Tensor>& with_a, const std::optional<at::Tensor>& with_b, const at::Tensor& grad, const at::Tensor& a,
    const at::Tensor& b, std::array<bool, 3> mask) {
  const bool has_a = with_a && with_a->defined(), has_b = with_b && with_b->defined();
  at::Tensor of_grad, of_a, of_b;
  if (mask[0] && has_a) of_grad = at::native::matmul(*with_a, b);
  if (mask[0] && has_b) {
    const at::Tensor more = at::native::matmul(a, *with_b);
    of_grad = of_grad.defined() ? of_grad.add(more) : more;
  }
  if (mask[1] && has_b) of_a = std::get<0>(composed(grad, a, *with_b, {true, false}));
  if (mask[2] && has_a) of_b = std::get<1>(composed(grad, *with_a, b, {false, true}));
  return {of_grad, of_a, of_b};
}

// An operator at a device's key, in one of its forms.
template <Place place, class Op, class Signature = typename Op::schema>
struct Hooked;
template <Place place, class Op, class Return, class... Arguments>
struct Hooked<place, Op, Return(Arguments...)> {
  static constexpr std::string_view name = Op::name;
  static constexpr bool is_written = std::is_same_v<Return, at::Tensor&>;  // out= and in-place
  static constexpr Kind kind = name.find("bmm") != name.npos   ? Kind::batches
                               : name.find("mv") != name.npos  ? Kind::vector
                                                               : Kind::matrices;

  static Return run(Arguments... arguments) {
    const auto pass_on = [&]() -> Return { return Previous<place, Op>::call(std::forward<Arguments>(arguments)...); };
    if (inside_torch > 0 || !requests_products(place)) return pass_on();
    if constexpr (is_composed<Op>) {
      return composed(arguments...);
    } else if constexpr (name == "aten::dot" || name == "aten::vdot") {
      if (name == "aten::vdot" && !std::get<0>(std::tie(arguments...)).is_complex()) return at::dot(arguments...);
      const at::Tensor left = std::get<0>(std::tie(arguments...)).unsqueeze(0);
      const at::Tensor result = computed(place, Kind::vector, {left, std::get<1>(std::tie(arguments...))});
      return result.defined() ? result.squeeze(0) : pass_on();
    } else if constexpr (is_written) {
      Terms terms = terms_of(arguments...);
      at::Tensor& out = std::get<at::Tensor&>(std::tuple<Arguments...>(arguments...));
      terms.out = &out;
      const bool fits = is_at(place, out) && out.scalar_type() == terms.left.scalar_type() && out.layout() == at::kStrided;
      const at::Tensor result = fits ? computed(place, kind, terms, &out == terms.added) : at::Tensor();
      if (!result.defined()) return pass_on();
      if (result.is_alias_of(out)) return out;
      at::native::resize_output(out, result.sizes());
      return out.copy_(result), out;
    } else {
      at::Tensor result = computed(place, kind, terms_of(arguments...));
      return result.defined() ? result : pass_on();
    }
  }
};

template <Place place, class... Ops>
void install_all(OurKernels& kernels) {
  constexpr c10::DispatchKey key = place == Place::cpu ? c10::DispatchKey::CPU : c10::DispatchKey::PrivateUse1;
  (Previous<place, Ops>::replace(key, torch::CppFunction(TORCH_FN((Hooked<place, Ops>::run))), &kernels), ...);
}

}  // namespace

bool keeps_weight(const Taken& policy, const at::Tensor& weight) {
  return policy.frozen_weights && weight.scalar_type() == at::kFloat && is_inference() && is_parameter(weight);
}

template <Place place>
void install_products(OurKernels& kernels) {
  install_all<
      place, at::_ops::mm, at::_ops::mm_out, at::_ops::addmm, at::_ops::addmm_out, at::_ops::addmm_, at::_ops::bmm, at::_ops::bmm_out,
      at::_ops::baddbmm, at::_ops::baddbmm_out, at::_ops::baddbmm_, at::_ops::mv, at::_ops::mv_out, at::_ops::addmv, at::_ops::addmv_out,
      at::_ops::addmv_, at::_ops::_addmm_activation, at::_ops::_addmm_activation_out>(kernels);
  if constexpr (place == Place::cpu) install_all<place, at::_ops::dot, at::_ops::vdot>(kernels);
  if constexpr (place == Place::ascend)
    install_all<place, at::_ops::matmul, at::_ops::matmul_out, at::_ops::matmul_backward, matmul_double_backward>(kernels);
}
template void install_products<Place::cpu>(OurKernels&);
template void install_products<Place::ascend>(OurKernels&);

}  // namespace msctx::glue
