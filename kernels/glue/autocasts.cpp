// What a thread has entered of torch.autocast since its precision policies: which of them it overrules, and what a backward pass computes
// again. torch reports each autocast that is entered or left while some policy is in force: see msctx/native/precision_switch.py.
#include "glue/precision_policy.h"

#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>

#include <optional>
#include <string_view>
#include <typeinfo>
#include <vector>

namespace msctx::glue {
namespace {

namespace autocast = at::autocast;

struct Autocast {
  int level;   // how many are entered, it included
  int device;  // -1: another one, or one that overrules nothing
  int64_t task_around;
};

struct Here {
  std::array<int, precision_devices> overruled{};  // by so many autocasts
  std::array<int, precision_devices> level{};      // how many autocasts had been entered when a device's policy was
  std::array<std::pair<bool, c10::ScalarType>, precision_devices> state{};  // and as what it left the device's own
  std::array<std::optional<std::pair<bool, c10::ScalarType>>, precision_devices> below{};  // what an autocast around a policy left, once it ended
  std::vector<Autocast> entered;
  int64_t task = -1;  // the backward pass in which the last of them was entered
};

// What a checkpoint computes again, in a backward pass.
struct Again {
  int level;  // of the autocast with which it was entered
  int number;
  Here around;
};

thread_local Here here;
thread_local std::vector<Again> again;
thread_local int last_level = 0;

int level_now() {
  const int found = autocast::increment_nesting() - 1;
  autocast::decrement_nesting();
  return found;
}

int64_t task_now() { return torch::autograd::get_current_graph_task_id(); }

std::pair<bool, c10::ScalarType> state_of(int device) {
  return {autocast::is_autocast_enabled(types_of_devices[device]), autocast::get_autocast_dtype(types_of_devices[device])};
}

void set_state(int device, const std::pair<bool, c10::ScalarType>& state) {
  autocast::set_autocast_enabled(types_of_devices[device], state.first);
  autocast::set_autocast_dtype(types_of_devices[device], state.second);
}

void enter(int level, int device) {
  const Combination* found = combination_in_force();
  const PrecisionPolicy* policy = found && device >= 0 ? found->policies[device] : nullptr;
  const int64_t task = task_now();
  // What a backward pass enters with the state of its forward pass is the policy's own.
  const bool is_own = policy && task != -1 && (!policy->low || state_of(device).second == *policy->low);
  if (!policy || is_own) device = -1;
  if (device >= 0) here.overruled[device]++;
  here.entered.push_back({level, device, here.task});
  here.task = task;
}

void leave(int level) {
  while (!again.empty() && level < again.back().level) {
    here = std::move(again.back().around);
    put_in_force(again.back().number);
    again.pop_back();
  }
  while (!here.entered.empty() && here.entered.back().level > level) {
    if (const int device = here.entered.back().device; device >= 0) here.overruled[device]--;
    here.task = here.entered.back().task_around;
    here.entered.pop_back();
  }
  // A policy that was put in force inside an autocast that has ended goes on.
  const Combination* found = combination_in_force();
  for (int i = 0; found && i < precision_devices; i++)
    if (found->policies[i] && level < here.level[i]) {
      here.level[i] = level;
      here.below[i] = state_of(i);
      set_state(i, here.state[i]);
    }
}

// What is overruled is part of the number in force. That number now, times 2^devices, with a bit for each device that is overruled; -1:
// nothing is in force; -2: no more numbers are left.
int number_overruled() {
  const Combination* found = combination_in_force();
  if (!found) return -1;
  int overruled = 0;
  for (int i = 0; i < precision_devices; i++)
    if (found->policies[i] && here.overruled[i] > 0) overruled |= 1 << i;
  if (overruled != found->overruled) {
    const int number = overruled_number(*found, overruled);
    if (number < 0) return -2;
    put_in_force(number);
  }
  return found->first << precision_devices | overruled;
}

// A torch.autograd.Function: its class is part of torch's Python library, which is not linked to.
bool is_pythons(const torch::autograd::Node& node) {
  static std::atomic<const std::type_info*> known{nullptr};
  const std::type_info& type = typeid(node);
  if (&type == known.load(std::memory_order_relaxed)) return true;
  if (std::string_view(type.name()) != "N5torch8autograd6PyNodeE") return false;
  known.store(&type, std::memory_order_relaxed);
  return true;
}

}  // namespace

bool is_backward() {
  const int64_t task = task_now();
  if (task == -1 || task == here.task) return false;
  const auto node = torch::autograd::get_current_node();
  return !node || !is_pythons(*node);
}

}  // namespace msctx::glue

using namespace msctx::glue;

// An autocast of a device (-1: another one) has been entered or left, or what is in force has changed: see number_overruled.
MSCTX_API int msctx_precision_note_autocast(int device) try {
  const int level = level_now();
  if (level > last_level) enter(level, device);
  if (level < last_level) leave(level);
  last_level = level;
  return number_overruled();
} catch (const std::exception&) {
  return -2;
}

// What a thread knows of the autocasts around a device's policy.
struct PrecisionHere {
  int32_t overruled, level, enabled, dtype;
};

MSCTX_API void msctx_precision_here(int device, PrecisionHere* found) {
  *found = {here.overruled[device], here.level[device], here.state[device].first, int32_t(here.state[device].second)};
}

// What is known of a device from now on: its policy begins (nullptr), or as it was.
MSCTX_API void msctx_precision_know(int device, const PrecisionHere* known) {
  last_level = level_now();
  here.overruled[device] = known ? known->overruled : 0;
  here.level[device] = known ? known->level : last_level;
  here.state[device] = known ? std::pair(known->enabled != 0, c10::ScalarType(known->dtype)) : state_of(device);
}

// A device's autocast as it is without any policy, where an autocast around a policy has ended since that began.
MSCTX_API void msctx_precision_restore(int device) {
  if (here.below[device]) set_state(device, *here.below[device]);
  here.below[device].reset();
}

// The number in force, with what is overruled; -1: nothing is.
MSCTX_API int msctx_precision_number() { return number_in_force(); }

// A checkpoint has entered the autocasts of its forward pass again, under which this number was in force: until the last of them is left.
// -1: it is none of ours.
MSCTX_API int msctx_precision_again(int number) try {
  const int level = level_now();
  again.push_back({level, number_in_force(), here});
  put_in_force(number);
  const Combination* found = combination_in_force();
  here = Here{};
  here.task = task_now();
  for (int i = 0; found && i < precision_devices; i++) {
    here.overruled[i] = found->overruled >> i & 1;
    here.level[i] = level;
    here.state[i] = state_of(i);
  }
  return number_overruled();
} catch (const std::exception&) {
  return -2;
}

// How many checkpoints this thread is computing again.
MSCTX_API int msctx_precision_agains() { return int(again.size()); }
