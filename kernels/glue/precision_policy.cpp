// In which dtype operators compute: policies, and what is in force in a thread.
#include "glue/precision_policy.h"

#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <deque>
#include <map>

#include "msctx/process.h"

namespace msctx::glue {
namespace {

namespace autocast = at::autocast;

constexpr c10::DeviceType device_types[precision_devices] = {at::kCPU, at::kCUDA, at::kPrivateUse1};
constexpr c10::DeviceType low_digit = at::kIPU, high_digit = at::kMAIA;  // nobody computes on these
constexpr int base = 40, most = base * base;  // dtypes that can stand for a digit

std::mutex& lock = fork_safe_mutex();
struct All {
  std::deque<PrecisionPolicy> policies;
  std::array<std::atomic<const Combination*>, most> combinations{};
  std::map<std::pair<int, int>, int> overruled;  // the first number of a combination, what of it is overruled → the number of that
};
All& all() {
  static All* found = new All;  // never destroyed: threads may still run while the process ends
  return *found;
}

std::atomic<bool> lowered_to[kinds_of_dtype]{};

// The digits as they are found where nothing is in force: no number has them.
const int found_low = int(autocast::get_autocast_dtype(low_digit)), found_high = int(autocast::get_autocast_dtype(high_digit));

int number_of(int low, int high) { return high * base + low; }

struct Here {
  // For each device's policy: how many autocasts had been entered when it was, and as which it left those of all devices.
  std::array<int, precision_devices> nesting{};
  std::array<std::array<std::pair<bool, c10::ScalarType>, precision_devices>, precision_devices> autocasts{};
};
thread_local Here here;

int nesting() {
  const int found = autocast::increment_nesting() - 1;
  autocast::decrement_nesting();
  return found;
}

int number_in_force() {
  const int low = int(autocast::get_autocast_dtype(low_digit)), high = int(autocast::get_autocast_dtype(high_digit));
  return (low == found_low && high == found_high) || low >= base || high >= base ? -1 : number_of(low, high);
}

void put_in_force(int number) {
  for (const auto digit : {low_digit, high_digit}) autocast::set_autocast_enabled(digit, number >= 0);  // or no guard looks at it
  autocast::set_autocast_dtype(low_digit, c10::ScalarType(number < 0 ? found_low : number % base));
  autocast::set_autocast_dtype(high_digit, c10::ScalarType(number < 0 ? found_high : number / base));
}

// The lock is held. The first free number from the wanted one on; -1: there can be no more.
int number_for(const Combination& combination, int wanted) {
  for (int i = 0; i < most; i++) {
    const int number = (wanted + i) % most;
    auto& place = all().combinations[size_t(number)];
    if (number == number_of(found_low, found_high) || place.load(std::memory_order_relaxed)) continue;
    auto made = std::make_unique<Combination>(combination);
    if (made->first < 0) made->first = number;
    place.store(made.release(), std::memory_order_release);
    return number;
  }
  return -1;
}

std::pair<bool, c10::ScalarType> autocast_of(int device) {
  return {autocast::is_autocast_enabled(device_types[device]), autocast::get_autocast_dtype(device_types[device])};
}

}  // namespace

PrecisionPolicy::PrecisionPolicy(const PrecisionRule* given, int count, int operators, int retries_, uint8_t low_, bool frozen_)
    : rules(size_t(operators)),
      retries(retries_),
      low(low_ ? std::optional(dtype_of(low_)) : std::nullopt),
      frozen(frozen_),
      counts(size_t(operators)) {
  for (int i = 0; i < count; i++) rules.at(size_t(given[i].op)) = given[i];
  if (low) lowered_to[kind_of(*low)].store(true, std::memory_order_relaxed);
}

bool was_lowered_to(c10::ScalarType dtype) { return lowered_to[kind_of(dtype)].load(std::memory_order_relaxed); }

const Combination* combination_in_force() {
  const int number = number_in_force();
  return number < 0 ? nullptr : all().combinations[size_t(number)].load(std::memory_order_acquire);
}

int nested() { return nesting() - *std::min_element(here.nesting.begin(), here.nesting.end()); }

bool in_backward_pass() { return torch::autograd::get_current_graph_task_id() != -1; }

bool is_overruled(const PrecisionPolicy& policy, int device) {
  if (nesting() <= here.nesting[device]) return false;
  if (in_backward_pass()) return policy.low && autocast_of(device).second != *policy.low;
  for (int other = 0; other < precision_devices; other++)  // the autocast of another device, which says nothing of this one
    if (other != device && autocast_of(other) != here.autocasts[device][other])
      return autocast_of(device) != here.autocasts[device][device];
  return true;
}

}  // namespace msctx::glue

using namespace msctx;
using namespace msctx::glue;

// A new policy's number, or -1: there was no memory.
MSCTX_API int msctx_precision_policy(const PrecisionRule* rules, int count, int operators, int retries, int low, int frozen) try {
  const std::lock_guard<std::mutex> guard(lock);
  all().policies.emplace_back(rules, count, operators, retries, uint8_t(low), frozen != 0);
  return int(all().policies.size()) - 1;
} catch (const std::exception&) {
  return -1;
}

// Weights may have changed: what is kept of them is made anew.
MSCTX_API void msctx_precision_thaw(int policy) try {
  const PrecisionPolicy* found;
  {
    const std::lock_guard<std::mutex> guard(lock);
    found = &all().policies.at(size_t(policy));
  }
  found->casts.drop();
} catch (const std::exception&) {  // there is no such policy
}

// The number of a new combination of policies (-1: none) for the devices, the wanted one if it is free; -1: there can be no more.
// What compiled code is kept under on disk has that number in it: processes should give the same one to the same policies.
MSCTX_API int msctx_precision_combination(const int32_t* policies, uint32_t wanted_) try {
  const int wanted = int(wanted_ % most);
  const std::lock_guard<std::mutex> guard(lock);
  Combination made{{}, -1, 0};
  for (int i = 0; i < precision_devices; i++) made.policies[i] = policies[i] < 0 ? nullptr : &all().policies.at(size_t(policies[i]));
  return number_for(made, wanted);
} catch (const std::exception&) {
  return -1;
}

// What a thread knows of the autocasts around its policy.
struct PrecisionHere {
  int32_t nesting, enabled[precision_devices], dtype[precision_devices];
};

MSCTX_API void msctx_precision_here(int device, PrecisionHere* found) {
  found->nesting = here.nesting[device];
  for (int i = 0; i < precision_devices; i++) {
    found->enabled[i] = here.autocasts[device][i].first;
    found->dtype[i] = int32_t(here.autocasts[device][i].second);
  }
}

// What is known of a device from now on: as it is (nullptr), or as it was.
MSCTX_API void msctx_precision_know(int device, const PrecisionHere* known) {
  here.nesting[device] = known ? known->nesting : nesting();
  for (int i = 0; i < precision_devices; i++)
    here.autocasts[device][i] = known ? std::pair(known->enabled[i] != 0, c10::ScalarType(known->dtype[i])) : autocast_of(i);
  for (auto& of_other : here.autocasts) of_other[device] = autocast_of(device);  // a change of ours
}

// Puts a combination in force in this thread, -1: none; returns the one before.
MSCTX_API int msctx_precision_switch(int combination) {
  const Combination* before = combination_in_force();
  put_in_force(combination);
  return before ? before->first : -1;
}

// An autocast has been entered or left: compiled code has to see which devices' policies it overrules. What is in force now: the number
// of a combination, times 2^devices, and a bit for each device that is overruled; -1: nothing; -2: no more numbers are left.
MSCTX_API int msctx_precision_note_autocasts() try {
  const Combination* found = combination_in_force();
  if (!found) return -1;
  int overruled = 0;
  for (int i = 0; i < precision_devices; i++)
    if (found->policies[i] && is_overruled(*found->policies[i], i)) overruled |= 1 << i;
  if (overruled != found->overruled) {
    const std::lock_guard<std::mutex> guard(lock);
    int number = found->first;
    if (overruled) {
      const auto place = all().overruled.try_emplace({found->first, overruled}, -1).first;
      if (place->second < 0) place->second = number_for({found->policies, found->first, overruled}, found->first + overruled);
      if ((number = place->second) < 0) return -2;
    }
    put_in_force(number);
  }
  return found->first << precision_devices | overruled;
} catch (const std::exception&) {
  return -2;
}

// Of each operator of a policy: calls by dtype (float32, float16, bfloat16, float64, others), casts, calls repeated in float32, traced.
MSCTX_API void msctx_precision_counts(int policy, int64_t (*counts)[kinds_of_dtype + 3], int operators) try {
  const PrecisionPolicy* found;
  {
    const std::lock_guard<std::mutex> guard(lock);
    found = &all().policies.at(size_t(policy));
  }
  for (int i = 0; i < operators && i < int(found->counts.size()); i++) {
    const PrecisionCounts& c = found->counts[size_t(i)];
    for (int k = 0; k < kinds_of_dtype; k++) counts[i][k] = c.calls[k].load(std::memory_order_relaxed);
    counts[i][kinds_of_dtype] = c.casts.load(std::memory_order_relaxed);
    counts[i][kinds_of_dtype + 1] = c.again.load(std::memory_order_relaxed);
    counts[i][kinds_of_dtype + 2] = c.traced.load(std::memory_order_relaxed);
  }
} catch (const std::exception&) {  // there is no such policy
}
