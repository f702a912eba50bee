// In which dtype operators compute: policies, and what is in force in a thread.
#include "glue/precision_policy.h"

#include <ATen/autocast_mode.h>
#include <ATen/ops/to_ops.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <deque>
#include <map>
#include <typeinfo>

#include "msctx/process.h"

namespace msctx::glue {
namespace {

namespace autocast = at::autocast;

// A number is kept as the autocast dtypes of devices that nobody has: guards look at all of them.
constexpr int base = 40, digits = 4, most_numbers = base * base * base * base;  // dtypes that can stand for a digit
constexpr std::array<c10::DeviceType, digits> digit_devices{at::kIPU, at::kMAIA, at::kHPU, at::kXLA};

std::mutex& policy_lock = fork_safe_mutex();
std::mutex& casts_lock = fork_safe_mutex();  // of all policies
struct Registry {
  std::deque<PrecisionPolicy> policies;
  std::map<std::pair<int, int>, int> overruled;  // the first number of a combination, what of it is overruled → the number of that
};
Registry& registry = immortal<Registry>();
std::array<std::atomic<const Combination*>, most_numbers> combinations;  // by number; what is not used takes no memory

struct Digits {
  std::array<int, digits> dtypes;
  int used = 0;  // where somebody has such a device after all, its autocast is left alone

  Digits() {
    while (used < digits && !c10::impl::hasDeviceGuardImpl(digit_devices[size_t(used)])) used++;
    dtypes = now();
  }
  std::array<int, digits> now() const {
    std::array<int, digits> dtypes{};
    for (int i = 0; i < used; i++) dtypes[size_t(i)] = int(autocast::get_autocast_dtype(digit_devices[size_t(i)]));
    return dtypes;
  }
};
const Digits at_rest;  // as they are where nothing is in force: no number has them

int number_of(const std::array<int, digits>& dtypes) {
  int number = 0;
  for (int i = digits - 1; i >= 0; i--) {
    if (dtypes[size_t(i)] >= base) return -1;
    number = number * base + dtypes[size_t(i)];
  }
  return number;
}

const PrecisionPolicy& policy_of(int number) {
  const std::lock_guard<std::mutex> guard(policy_lock);
  return registry.policies.at(size_t(number));
}

int numbers() {
  int count = 1;
  for (int i = 0; i < at_rest.used; i++) count *= base;
  return count;
}

// The lock is held. The first free number from the wanted one on; -1: there can be no more.
int number_for(const Combination& combination, int wanted) {
  const int count = numbers();
  for (int i = 0; i < count; i++) {
    const int number = (wanted + i) % count;
    auto& place = combinations[size_t(number)];
    if (number == number_of(at_rest.dtypes) || place.load(std::memory_order_relaxed)) continue;
    auto made = std::make_unique<Combination>(combination);
    if (made->first < 0) made->first = number;
    place.store(made.release(), std::memory_order_release);
    return number;
  }
  return -1;
}

// -1: nothing is.
int number_in_force() {
  const auto dtypes = at_rest.now();
  return dtypes == at_rest.dtypes ? -1 : number_of(dtypes);
}

void put_in_force(int number) {
  for (int i = 0; i < at_rest.used; i++) {
    const auto device = digit_devices[size_t(i)];
    autocast::set_autocast_enabled(device, number >= 0);  // or no guard looks at it
    autocast::set_autocast_dtype(device, c10::ScalarType(number < 0 ? at_rest.dtypes[size_t(i)] : number % base));
    if (number >= 0) number /= base;
  }
}

// The number of a combination of which some devices are overruled; -1: there can be no more.
int overruled_number(const Combination& combination, int overruled) {
  if (!overruled) return combination.first;
  const std::lock_guard<std::mutex> guard(policy_lock);
  int& number = registry.overruled.try_emplace({combination.first, overruled}, -1).first->second;
  if (number < 0) number = number_for({combination.policies, combination.first, overruled}, combination.first + overruled);
  return number;
}

uint8_t code_of(const Json& dtype) {
  if (dtype.text == "origin") return origin;
  for (size_t i = 0; i < dtypes.size(); i++)
    if (dtype.text == names_of_dtypes[i]) return uint8_t(i + 1);
  return 0;
}

}  // namespace

at::Tensor KeptCasts::get(const at::Tensor& tensor, c10::ScalarType to, int64_t& count) {
  const void* at = tensor.const_data_ptr();
  const c10::TensorImpl* key = tensor.unsafeGetTensorImpl();
  {
    const std::lock_guard<std::mutex> guard(casts_lock);
    const auto found = kept_.find(key);
    if (found != kept_.end() && !found->second.of.expired() && found->second.at == at && found->second.cast.scalar_type() == to &&
        found->second.cast.sizes() == tensor.sizes() && found->second.cast.strides() == tensor.strides())
      return found->second.cast;
  }
  count++;
  at::Tensor made;
  {
    const c10::InferenceMode ordinary(false);  // it may be used later where graphs are recorded
    const at::NoGradGuard unrecorded;
    made = at::_ops::to_dtype::call(tensor.detach(), to, false, false, std::nullopt);
  }
  std::vector<at::Tensor> gone;  // freed when the lock is not held
  const std::lock_guard<std::mutex> guard(casts_lock);
  for (auto one = kept_.begin(); one != kept_.end();) {
    const bool is_dead = one->second.of.expired() || one->first == key;
    if (is_dead) gone.push_back(std::move(one->second.cast));
    one = is_dead ? kept_.erase(one) : std::next(one);
  }
  kept_.insert({key, {decltype(Kept::of)(tensor.getIntrusivePtr()), at, made}});
  return made;
}

void KeptCasts::drop() {
  std::unordered_map<const c10::TensorImpl*, Kept> gone;
  const std::lock_guard<std::mutex> guard(casts_lock);
  gone.swap(kept_);
}

PrecisionRule::PrecisionRule(const Json& given)
    : to{code_of(given["float32"]), code_of(given["float16"]), code_of(given["bfloat16"])},
      output(code_of(given["output"])),
      widest(given["follows"].is_on() ? 2 : given["widest"].is_on()),
      through(code_of(given["through"])),
      checks_index(given["checks_index"].is_on()),
      whole(given["whole"].is_on()) {
  for (const auto& [name, codes] : {std::pair("inputs", inputs), std::pair("outputs", outputs)})
    if (const auto& listed = given[name].members; !listed.empty())  // what is not listed follows the last one that is: a bias the weight
      for (size_t i = 0; i < most_listed; i++) codes[i] = code_of(listed[std::min(i, listed.size() - 1)].second);
}

PrecisionPolicy::PrecisionPolicy(const Json& given)
    : retries(given["retries"].integer()),
      low(code_of(given["low"]) ? std::optional(dtype_of(code_of(given["low"]))) : std::nullopt),
      frozen(given["frozen"].is_on()),
      place(size_t(given["operators"].integer())),
      made(new std::atomic<PrecisionCounts*>[place.size()] {}) {
  const auto half = uint8_t(1 + kind_of(at::kHalf));
  for (const auto& [_, one] : given["rules"].members) {
    const PrecisionRule& rule = distinct.emplace_back(one);
    for (const auto& [_, op] : one["operators"].members) place.at(size_t(op.integer())) = uint16_t(distinct.size() - 1);
    lowers_to_half |= std::count(std::begin(rule.to), std::end(rule.to), half) || std::count(rule.inputs, rule.inputs + most_listed, half);
  }
}

void PrecisionPolicy::count(int op, int what, int64_t more) const {
  PrecisionCounts* found = made[size_t(op)].load(std::memory_order_acquire);
  if (!found) {
    auto fresh = std::make_unique<PrecisionCounts>();
    const bool is_first = made[size_t(op)].compare_exchange_strong(found, fresh.get(), std::memory_order_acq_rel);
    if (is_first) found = fresh.release();
  }
  (*found)[size_t(what)].fetch_add(more, std::memory_order_relaxed);
}

const Combination* combination_in_force() {
  const int number = number_in_force();
  return number < 0 ? nullptr : combinations[size_t(number)].load(std::memory_order_acquire);
}

namespace {

// --- what a thread has entered of torch.autocast since its precision policies: which of them it overrules, and what a backward pass
// computes again. torch reports each autocast that is entered or left while some policy is in force: see
// msctx/native/precision_switch.py.

struct Autocast {
  int level;   // how many are entered, it included
  int device;  // -1: another one, or one that overrules nothing
  int64_t task_around;
};

// Of a device, as Python keeps it: by how many autocasts it is overruled; how many had been entered when its policy was, as what that
// left the device's own, and in which backward pass that was.
struct Known {
  int32_t overruled, level, enabled, dtype;
  int64_t task = -1;
};
struct Autocasts {
  std::array<Known, precision_devices> of{};
  std::array<std::optional<Known>, precision_devices> below{};  // what an autocast around a policy left, once it ended
  std::vector<Autocast> entered;
  int64_t task = -1;  // the backward pass in which the last of them was entered
};

// What a checkpoint computes again, in a backward pass.
struct Again {
  int level;  // of the autocast with which it was entered
  int number;
  Autocasts around;
};

thread_local Autocasts autocasts;
thread_local std::vector<Again> again;
thread_local int last_level = 0;

int level_now() {
  const int found = autocast::increment_nesting() - 1;
  autocast::decrement_nesting();
  return found;
}

int64_t task_now() { return torch::autograd::get_current_graph_task_id(); }

Known state_of(int device, int overruled, int level) {
  const c10::DeviceType type = types_of_devices[device];
  return {overruled, level, autocast::is_autocast_enabled(type), int32_t(autocast::get_autocast_dtype(type)), task_now()};
}

void set_state(int device, const Known& known) {
  autocast::set_autocast_enabled(types_of_devices[device], known.enabled != 0);
  autocast::set_autocast_dtype(types_of_devices[device], c10::ScalarType(known.dtype));
}

// Whether a backward pass runs in which neither the device's policy nor an autocast was entered.
bool is_of_backward(int device, int64_t task) { return task != -1 && task != autocasts.task && task != autocasts.of[device].task; }

void enter(int level, int device) {
  const Combination* found = combination_in_force();
  const PrecisionPolicy* policy = found && device >= 0 ? found->policies[device] : nullptr;
  const int64_t task = task_now();
  // What a backward pass enters with the state of its forward pass is the policy's own.
  const bool is_own = policy && is_of_backward(device, task) && (!policy->low || autocast::get_autocast_dtype(types_of_devices[device]) == *policy->low);
  if (!policy || is_own) device = -1;
  if (device >= 0) autocasts.of[device].overruled++;
  autocasts.entered.push_back({level, device, autocasts.task});
  autocasts.task = task;
}

void leave(int level) {
  while (!again.empty() && level < again.back().level) {
    autocasts = std::move(again.back().around);
    put_in_force(again.back().number);
    again.pop_back();
  }
  while (!autocasts.entered.empty() && autocasts.entered.back().level > level) {
    if (const int device = autocasts.entered.back().device; device >= 0) autocasts.of[device].overruled--;
    autocasts.task = autocasts.entered.back().task_around;
    autocasts.entered.pop_back();
  }
  // A policy that was put in force inside an autocast that has ended goes on.
  const Combination* found = combination_in_force();
  for (int i = 0; found && i < precision_devices; i++)
    if (found->policies[i] && level < autocasts.of[i].level) {
      autocasts.of[i].level = level;
      autocasts.below[i] = state_of(i, 0, level);
      set_state(i, autocasts.of[i]);
    }
}

// What is overruled is part of the number in force. That number now, times 2^devices, with a bit for each device that is overruled; -1:
// nothing is in force; -2: no more numbers are left.
int number_overruled() {
  const Combination* found = combination_in_force();
  if (!found) return -1;
  int overruled = 0;
  for (int i = 0; i < precision_devices; i++)
    if (found->policies[i] && autocasts.of[i].overruled > 0) overruled |= 1 << i;
  if (overruled != found->overruled) {
    const int number = overruled_number(*found, overruled);
    if (number < 0) return -2;
    put_in_force(number);
  }
  return found->first << precision_devices | overruled;
}

// A torch.autograd.Function: its class is part of torch's Python library, which is not linked to.
bool is_pythons(const torch::autograd::Node& node) { return std::string_view(typeid(node).name()) == "N5torch8autograd6PyNodeE"; }

}  // namespace

bool is_backward(int device) {
  if (!is_of_backward(device, task_now())) return false;
  const auto node = torch::autograd::get_current_node();
  return !node || !is_pythons(*node);
}

}  // namespace msctx::glue

using namespace msctx;
using namespace msctx::glue;

// A new policy's number. `json`: see policy_of in msctx/native/precision_policies.py.
MSCTX_API int msctx_precision_policy(const char* json) {
  const Json given = Json::of(json);
  const std::lock_guard<std::mutex> guard(policy_lock);
  registry.policies.emplace_back(given);
  return int(registry.policies.size()) - 1;
}

// Weights may have changed: what is kept of them is made anew.
MSCTX_API void msctx_precision_thaw(int policy) { policy_of(policy).kept_casts.drop(); }

// The number of a new combination of policies (-1: none) for the devices, the wanted one if it is free; -1: there can be no more.
// What compiled code is kept under on disk has that number in it: processes should give the same one to the same policies.
MSCTX_API int msctx_precision_combination(const int32_t* policies, uint32_t wanted_) {
  const int wanted = int(wanted_ % uint32_t(numbers()));
  const std::lock_guard<std::mutex> guard(policy_lock);
  Combination made{{}, -1, 0};
  for (int i = 0; i < precision_devices; i++) made.policies[i] = policies[i] < 0 ? nullptr : &registry.policies.at(size_t(policies[i]));
  return number_for(made, wanted);
}

// Puts a combination in force in this thread, -1: none.
MSCTX_API void msctx_precision_switch(int combination) { put_in_force(combination); }

// What has been counted of each operator of a policy.
MSCTX_API void msctx_precision_counts(int policy, int64_t (*counts)[Counted::all], int operators) {
  const PrecisionPolicy& requested = policy_of(policy);
  for (int i = 0; i < operators; i++)
    if (const PrecisionCounts* found = requested.counted(i)) std::ranges::copy(*found, counts[i]);
}

// An autocast of a device (-1: another one) has been entered or left, or what is in force has changed: see number_overruled.
MSCTX_API int msctx_precision_note_autocast(int device) {
  const int level = level_now();
  if (level > last_level) enter(level, device);
  if (level < last_level) leave(level);
  last_level = level;
  return number_overruled();
}

// What a thread knows of the autocasts around a device's policy.
MSCTX_API void msctx_precision_here(int device, Known* found) { *found = autocasts.of[device]; }

// What is known of a device from now on: its policy begins (nullptr), or as it was.
MSCTX_API void msctx_precision_know(int device, const Known* known) {
  last_level = level_now();
  autocasts.of[device] = known ? *known : state_of(device, 0, last_level);
}

// A device's autocast as it is without any policy, where an autocast around a policy has ended since that began.
MSCTX_API void msctx_precision_restore(int device) {
  if (autocasts.below[device]) set_state(device, *autocasts.below[device]);
  autocasts.below[device].reset();
}

// The number in force, with what is overruled; -1: nothing is.
MSCTX_API int msctx_precision_number() { return number_in_force(); }

// A checkpoint has entered the autocasts of its forward pass again, under which this number was in force: until the last of them is left.
// -1: it is none of ours.
MSCTX_API int msctx_precision_again(int number) {
  const int level = level_now();
  again.push_back({level, number_in_force(), autocasts});
  put_in_force(number);
  const Combination* found = combination_in_force();
  autocasts = Autocasts{};
  autocasts.task = task_now();
  for (int i = 0; found && i < precision_devices; i++) autocasts.of[i] = state_of(i, found->overruled >> i & 1, level);
  return number_overruled();
}

// How many checkpoints this thread is computing again.
MSCTX_API int msctx_precision_agains() { return int(again.size()); }
