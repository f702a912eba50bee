#include "glue/operators.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <map>
#include <memory>
#include <span>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "msctx/process.h"

namespace msctx::glue {
namespace {

std::mutex& lock = fork_safe_mutex();

// Arrays: nothing of them is destroyed while the process ends, when threads may still run operators.
constexpr std::string_view accumulating[] = {
    "aten::scatter_add", "aten::scatter_add_", "aten::scatter_reduce", "aten::scatter_reduce_", "aten::index_add", "aten::index_add_",
    "aten::index_reduce", "aten::index_reduce_", "aten::embedding_dense_backward", "aten::index_put", "aten::index_put_",
    "aten::_index_put_impl_", "aten::put", "aten::put_", "aten::bincount", "aten::histc"};
// Their results are what somebody wrote there, such as the -inf of a mask.
constexpr std::string_view of_constants[] = {
    "aten::fill", "aten::fill_", "aten::full", "aten::full_like", "aten::new_full", "aten::masked_fill", "aten::masked_fill_",
    "aten::scalar_tensor", "aten::constant_pad_nd", "aten::from_file", "aten::lift_fresh"};
// They update running statistics, which their schemas do not declare.
constexpr std::string_view of_norms[] = {
    "aten::native_batch_norm", "aten::cudnn_batch_norm", "aten::miopen_batch_norm", "aten::batch_norm_update_stats",
    "aten::batch_norm_gather_stats", "aten::batch_norm_gather_stats_with_counts"};
// Torch makes them of others, whatever kernels of ours stand at their keys (routes.cpp).
constexpr std::string_view of_ours[] = {"aten::linear", "aten::lstm"};
// They write a part of what may have held anything before.
constexpr std::string_view of_moves[] = {
    "aten::copy_", "aten::index_copy_", "aten::index_put_", "aten::_index_put_impl_", "aten::scatter_", "aten::masked_scatter_",
    "aten::put_", "aten::index_fill_"};
// They choose between values, or copy them: a tensor without dimensions is one that somebody has written there.
constexpr std::string_view of_choices[] = {
    "aten::where", "aten::minimum", "aten::maximum", "aten::fmin", "aten::fmax", "aten::clamp", "aten::clamp_", "aten::clamp_min",
    "aten::clamp_min_", "aten::clamp_max", "aten::clamp_max_", "aten::clone", "aten::_to_copy", "aten::stack", "aten::index_fill",
    "aten::index_put"};
constexpr std::string_view of_checks[] = {
    "aten::_linalg_check_errors", "aten::_assert_async", "aten::_assert_scalar", "aten::_assert_tensor_metadata"};
// Their results hold nothing yet, or what was there before.
constexpr std::string_view of_nothing[] = {
    "aten::detach_", "aten::requires_grad_", "aten::as_strided_", "aten::squeeze_", "aten::unsqueeze_", "aten::t_", "aten::transpose_",
    "aten::swapaxes_", "aten::swapdims_", "aten::resize_as_", "aten::rename_", "aten::_unsafe_view",
    "aten::empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty", "aten::new_empty_strided", "aten::empty_permuted",
    "aten::resize_", "aten::set_", "aten::_efficientzerotensor"};

bool is_one(std::string_view name, std::span<const std::string_view> names) { return std::ranges::find(names, name) != names.end(); }

std::unique_ptr<Operator> look_up(const std::string& name, const std::string& overload) {
  auto found = std::make_unique<Operator>();
  found->name = name;
  found->overload = overload;
  const auto handle = c10::Dispatcher::singleton().findSchema({name, overload});
  if (!handle) return found;
  found->has_schema = true;
  found->stands_for_others = handle->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) &&
                             (!handle->hasKernelForDispatchKey(c10::DispatchKey::CPU) || is_one(name, of_ours));
  const c10::FunctionSchema& schema = handle->schema();
  bool writes = false, gives_views = false, gives_tensors = false;
  for (const c10::Argument& one : schema.arguments()) {
    const auto* alias = one.alias_info();
    const bool is_written = alias ? alias->isWrite() : is_one(name, of_norms) && one.name().starts_with("running_");
    const bool is_returned = alias && std::ranges::any_of(schema.returns(), [&](const c10::Argument& result) {
      return result.alias_info() && result.alias_info()->beforeSets() == alias->beforeSets();
    });
    if (is_written && !is_returned) found->unreturned.push_back(found->arguments.size());
    if (one.name() == "training" || one.name() == "train") found->training = int(found->arguments.size());
    found->arguments.push_back(one.name());
    found->is_written.push_back(is_written && !one.kwarg_only());
    found->is_result.push_back(is_written && one.kwarg_only());
    writes |= is_written;
  }
  for (const c10::Argument& one : schema.returns()) {
    gives_views |= one.alias_info() && !one.alias_info()->isWrite();
    gives_tensors |= one.type()->kind() != c10::TypeKind::IntType && one.type()->kind() != c10::TypeKind::BoolType;
  }
  found->returns = schema.returns().size();
  found->makes_data = ((gives_tensors && !gives_views) || writes) && !is_one(name, of_nothing);
  found->accumulates = is_one(name, accumulating);
  found->puts_constants = is_one(name, of_constants);
  found->moves_data = is_one(name, of_moves);
  found->chooses = is_one(name, of_choices);
  found->only_checks = is_one(name, of_checks);
  return found;
}

}  // namespace

const Operator& operator_of(const at::RecordFunction& fn) {
  const char* name = fn.name();
  const char* overload = fn.overload_name();
  thread_local std::unordered_map<const void*, const Operator*> known;
  if (const auto found = known.find(name);
      found != known.end() && found->second->name == name && found->second->overload == overload)
    return *found->second;
  static auto& all = immortal<std::map<std::pair<std::string, std::string>, std::unique_ptr<Operator>>>();
  const std::lock_guard<std::mutex> guard(lock);
  auto& slot = all[{name, overload}];
  if (!slot) slot = look_up(name, overload);
  if (known.size() > 4096) known.clear();
  known[name] = slot.get();
  return *slot;
}

}  // namespace msctx::glue
