// In which dtype operators compute: policies, and what is in force in a thread.
#include "glue/precision_policy.h"

#include <ATen/autocast_mode.h>

#include <algorithm>
#include <deque>
#include <map>

#include "msctx/process.h"

namespace msctx::glue {
namespace {

namespace autocast = at::autocast;

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

// The digits as they are found where nothing is in force: no number has them.
const int found_low = int(autocast::get_autocast_dtype(low_digit)), found_high = int(autocast::get_autocast_dtype(high_digit));

int number_of(int low, int high) { return high * base + low; }

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

}  // namespace

PrecisionPolicy::PrecisionPolicy(const PrecisionRule* given, int count, int operators, int retries_, uint8_t low_, bool frozen_)
    : rules(size_t(operators)),
      retries(retries_),
      low(low_ ? std::optional(dtype_of(low_)) : std::nullopt),
      frozen(frozen_),
      counts(size_t(operators)) {
  const auto half = uint8_t(1 + kind_of(at::kHalf));
  for (int i = 0; i < count; i++) {
    rules.at(size_t(given[i].op)) = given[i];
    lowers_to_half |= std::count(std::begin(given[i].to), std::end(given[i].to), half) || std::count(given[i].inputs, given[i].inputs + most_listed, half);
  }
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

const Combination* combination_in_force() {
  const int number = number_in_force();
  return number < 0 ? nullptr : all().combinations[size_t(number)].load(std::memory_order_acquire);
}

int overruled_number(const Combination& combination, int overruled) {
  if (!overruled) return combination.first;
  const std::lock_guard<std::mutex> guard(lock);
  int& number = all().overruled.try_emplace({combination.first, overruled}, -1).first->second;
  if (number < 0) number = number_for({combination.policies, combination.first, overruled}, combination.first + overruled);
  return number;
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

// Puts a combination in force in this thread, -1: none; returns the one before.
MSCTX_API int msctx_precision_switch(int combination) {
  const Combination* before = combination_in_force();
  put_in_force(combination);
  return before ? before->first : -1;
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
