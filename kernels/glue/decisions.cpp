// From the decision about a call to its result: complaints, measuring, counting. Convolutions, products and routes share it.
#include <ATen/record_function.h>

#include <chrono>

#include "glue/cuda.h"
#include "glue/hook.h"
#include "glue/kept_weights.h"
#include "glue/python.h"

namespace msctx::glue {

std::atomic<void (*)(const char* ran)> on_algorithm{nullptr};
constinit thread_local Trial trial = Trial::none;

void complain(const Taken& policy, const Decision& decision, Direction direction) {
  static std::atomic<int64_t> warned[places][directions];  // the number of the policy under which the last warning was issued
  if (!decision.error || policy.fallback == Fallback::silent) return;
  if (policy.fallback == Fallback::warn) {
    std::atomic<int64_t>& last = warned[int(policy.place)][int(direction)];
    if (last.load(std::memory_order_relaxed) == policy.number) return;
    if (!warn(decision.warning)) return last.store(policy.number, std::memory_order_relaxed);
  }
  const char* requested = policy.fallback == Fallback::strict ? "strict=True" : policy.fallback == Fallback::error ? "fallback=error" : "fallback=warn";
  TORCH_CHECK(false, decision.error, requested, ": nothing was computed.");
}

const Decision* refused(
    const Taken& policy, Direction direction, const std::string& reason, const at::Tensor& input, const at::Tensor& weight,
    const char* layout, const ConvCall* call) {
  const auto shape_of = [](const at::Tensor& t) { return t.defined() ? joined(t.sizes()) : std::string(); };
  const std::string shapes[] = {shape_of(input), shape_of(weight)};
  const std::string dtype(input.defined() ? c10::getDtypeNames(input.scalar_type()).first : "");
  const Words words{shapes[0].c_str(), shapes[1].c_str(), dtype.c_str(), layout};
  const Decision* decision = nullptr;
  check(msctx_refuse(&policy, direction, call, &words, reason.c_str(), &decision));
  return decision;
}

void refuse(const Taken& policy, Direction direction, const Decision* decision) {
  if (decision == nullptr) return;
  complain(policy, *decision, direction);
  by_row(policy, *decision, direction, [](const ConvRow&, Ran&) { return at::Tensor(); });
}

const Decision* measured(
    const Taken& policy, const ConvCall& call, const Decision* guessed, Direction direction, int threads, c10::function_ref<bool(const ConvRow*)> run,
    std::optional<int> device) {
  struct How {
    c10::function_ref<bool(const ConvRow*)> run;
    std::optional<int> device;
  } how{run, device};
  const auto prepare = [](void* arg, const ConvRow* row) {
    const How& how = *static_cast<How*>(arg);
    return caught([&] {
      how.run(row);
      wait_for_device(*how.device);
    });
  };
  const auto seconds = [](void* arg, const ConvRow* row) {
    const How& how = *static_cast<How*>(arg);
    double found = -1.0;
    caught([&] {
      if (how.device) return void(found = seconds_on_device(*how.device, [&] { how.run(row); }));
      auto start = std::chrono::steady_clock::now();
      if (how.run(row)) {  // it has prepared a weight, which later calls need not
        start = std::chrono::steady_clock::now();
        how.run(row);
      }
      found = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    });
    return found;
  };
  const Contest contest{device ? +prepare : nullptr, seconds, &how};
  const WhileMeasuring measuring;
  check(msctx_measure(&policy, &call, direction, threads, &contest, &guessed));
  return guessed;
}

at::Tensor by_row(
    const Taken& policy, const Decision& decision, Direction direction, c10::function_ref<at::Tensor(const ConvRow&, Ran&)> ours) {
  at::Tensor result;
  Ran ran;
  if (decision.row) {
    at::RecordFunction range(at::RecordScope::USER_SCOPE);  // for torch.profiler; else it costs a look at a counter
    if (range.isActive()) range.before(std::string("msctx::") + decision.row->name + " " + name_of(direction));
    tell(decision);
    result = ours(*decision.row, ran);
  }
  tell(decision);
  if (trial == Trial::none) msctx_count(&policy, &decision, ran.weights_kept, ran.weights_prepared, ran.again);
  return result;
}

}  // namespace msctx::glue

// What this thread runs from now on, a Trial. Returns what it ran before.
MSCTX_API int msctx_on_trial(int what) { return int(std::exchange(msctx::glue::trial, msctx::glue::Trial(what))); }
