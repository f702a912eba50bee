// In which dtype operators compute: policies, and what is in force in a thread.
#include "glue/precision_policy.h"

#include <ATen/autocast_mode.h>

#include <algorithm>
#include <deque>

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
  int used = 0;
};
All& all() {
  static All* found = new All;  // never destroyed: threads may still run while the process ends
  return *found;
}

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

std::pair<bool, c10::ScalarType> autocast_of(int device) {
  return {autocast::is_autocast_enabled(device_types[device]), autocast::get_autocast_dtype(device_types[device])};
}

}  // namespace

PrecisionPolicy::PrecisionPolicy(const PrecisionRule* given, int count, int operators, int retries_, uint8_t low_)
    : rules(size_t(operators)), retries(retries_), low(low_ ? std::optional(dtype_of(low_)) : std::nullopt), counts(size_t(operators)) {
  for (int i = 0; i < count; i++) rules.at(size_t(given[i].op)) = given[i];
}

const Combination* combination_in_force() {
  const int low = int(autocast::get_autocast_dtype(low_digit)), high = int(autocast::get_autocast_dtype(high_digit));
  if ((low == found_low && high == found_high) || low >= base || high >= base) return nullptr;
  return all().combinations[size_t(number_of(low, high))].load(std::memory_order_acquire);
}

int nested() { return nesting() - *std::min_element(here.nesting.begin(), here.nesting.end()); }

bool is_overruled(const PrecisionPolicy& policy, int device, bool in_backward_pass) {
  if (nesting() <= here.nesting[device]) return false;
  if (in_backward_pass) return policy.low && autocast_of(device).second != *policy.low;
  for (int other = 0; other < precision_devices; other++)  // the autocast of another device, which says nothing of this one
    if (other != device && autocast_of(other) != here.autocasts[device][other])
      return autocast_of(device) != here.autocasts[device][device];
  return true;
}

}  // namespace msctx::glue

using namespace msctx;
using namespace msctx::glue;

// A new policy's number, or -1: there was no memory.
MSCTX_API int msctx_precision_policy(const PrecisionRule* rules, int count, int operators, int retries, int low) try {
  const std::lock_guard<std::mutex> guard(lock);
  all().policies.emplace_back(rules, count, operators, retries, uint8_t(low));
  return int(all().policies.size()) - 1;
} catch (const std::exception&) {
  return -1;
}

// The number of a new combination of policies (-1: none) for the devices; -1: there can be no more.
MSCTX_API int msctx_precision_combination(const int32_t* policies) try {
  const std::lock_guard<std::mutex> guard(lock);
  All& found = all();
  if (found.used == number_of(found_low, found_high)) found.used++;
  if (found.used >= most) return -1;
  auto made = std::make_unique<Combination>();
  for (int i = 0; i < precision_devices; i++) (*made)[i] = policies[i] < 0 ? nullptr : &found.policies.at(size_t(policies[i]));
  found.combinations[size_t(found.used)].store(made.release(), std::memory_order_release);
  return found.used++;
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
  const int low = int(autocast::get_autocast_dtype(low_digit)), high = int(autocast::get_autocast_dtype(high_digit));
  for (const auto digit : {low_digit, high_digit}) autocast::set_autocast_enabled(digit, combination >= 0);  // or no guard looks at it
  autocast::set_autocast_dtype(low_digit, c10::ScalarType(combination < 0 ? found_low : combination % base));
  autocast::set_autocast_dtype(high_digit, c10::ScalarType(combination < 0 ? found_high : combination / base));
  return (low == found_low && high == found_high) || low >= base || high >= base ? -1 : number_of(low, high);
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
