// One collector of what runs: every operator, in every thread, for whoever asks. Torch's RecordFunction calls it, where anybody does.
//
// An operator counts once: operators that it is made of belong to it, and those that only stand for others (linear, matmul) give way to
// them. Its module is the one whose forward pass runs; in a backward pass, the one in which the node of the graph was made.
#include <ATen/SavedTensorHooks.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <unordered_map>

#include "glue/observed.h"
#include "glue/tensors.h"
#include "msctx/process.h"

namespace msctx::glue {
namespace {

std::mutex& collector_lock = fork_safe_mutex();
std::atomic<int64_t> operators{0}, step{0};
at::CallbackHandle callback = at::INVALID_CALLBACK_HANDLE;  // under the lock
std::atomic<PythonFunction> placer{nullptr};  // Python's, for the life of the process

// Of the operator that has made a node of the graph.
struct Maker {
  const char* module = "";
  const char* line = "";
  int64_t id = -1;
  bool is_excepted = false;
};
// By the numbers of nodes: a thread numbers its own, and backward passes may run elsewhere.
class Makers {
 public:
  // Of the node that this thread makes next; the last call counts.
  void remember(int64_t number, const Maker& maker) {
    const std::lock_guard<std::mutex> guard(lock_);
    if (latest_.size() >= most) before_ = std::exchange(latest_, {});
    latest_[key_of(at::RecordFunction::currentThreadId(), number)] = maker;
  }

  // Of a node that a thread has made; nothing where that is long ago.
  Maker find(uint64_t thread, int64_t number) {
    const std::lock_guard<std::mutex> guard(lock_);
    for (const auto* one : {&latest_, &before_})
      if (const auto found = one->find(key_of(thread, number)); found != one->end()) return found->second;
    return {};
  }

 private:
  static constexpr size_t most = 1 << 15;  // nodes, twice
  static uint64_t key_of(uint64_t thread, int64_t number) { return thread << 40 ^ uint64_t(number); }
  std::mutex& lock_ = fork_safe_mutex();
  std::unordered_map<uint64_t, Maker> latest_, before_;
};
Makers& makers = immortal<Makers>();

// The module and the node of the graph in which a thread computes.
struct Around {
  const char* module = "";
  std::string node;
  Maker maker;  // of the node
};
struct Here {
  Around place, last;  // last: what ran last of a backward pass
  int64_t last_task = -1;  // that pass
  bool is_inside = false, looks_away = false;
  bool may_call_python = false;  // what is_inside, for a watchdog
  int backward = 0, optimizer = 0;
  int64_t errors = 0;  // that operators have raised
  int standing = 0;    // operators that run and stand for others
  int excepted = 0;    // operators and nodes that run and are left out of deterministic mode
  std::pair<const Operator*, int64_t> wrapped{};  // that a transform (torch.func) calls again for what is inside its tensors; its number
  std::string algorithm;  // that computes what runs, where it is ours or we know it
  std::shared_ptr<const Config> config;
  int64_t version = -1;
};
thread_local Here here;  // what runs for each operator looks it up once

int64_t now() {
  using namespace std::chrono;
  return duration_cast<microseconds>(system_clock::now().time_since_epoch()).count();
}

// What has begun, until it ends.
struct Observed : at::ObserverContext {
  bool is_exception = false;  // from deterministic mode
  virtual void end(const at::RecordFunction&, Here&) {}
};
struct Context : Observed {
  Row* recent = nullptr;
  std::shared_ptr<const Config> config;  // nullptr: it is not seen
  Row row;
  std::vector<c10::IValue> arguments;
  std::vector<std::optional<Statistics>> before;  // of the arguments that are written to
  int exceptions = std::uncaught_exceptions();
  int64_t errors = 0;  // that operators had raised before
  Running around;
  std::vector<std::pair<const Reader*, Row>> wanted;  // rows that readers have chosen
  bool has_failed() const { return std::uncaught_exceptions() > exceptions; }
  void end(const at::RecordFunction&, Here&) override;
};
// Of what only has to be put back.
template <class Work>
struct Ending : Observed {
  Work work;
  explicit Ending(Work work) : work(std::move(work)) {}
  void end(const at::RecordFunction&, Here& here) override { work(here); }
};
template <class Work>
std::unique_ptr<Observed> at_end(Work work) {
  return std::make_unique<Ending<Work>>(std::move(work));
}

// The operator's own, which are the last ones: a transform calls it on a stack that holds what it was called with itself.
template <class Values>
at::ArrayRef<c10::IValue> own(const Values& values, size_t count) {
  const at::ArrayRef<c10::IValue> all(values.data(), values.size());
  return all.size() > count ? all.slice(all.size() - count) : all;
}

// The frame of Python that calls an operator which may call Python itself: hooks that pack what autograd keeps, and modes.
long caller_here() { return call_python(placer, 0, "(i)", 1); }

// The user's line that calls the operator, where somebody wants to know; a node that another one makes belongs to the line of that one.
const char* line_of(const Here& here, const Config& requested) {
  if (!requested.lines) return "";
  if (here.backward && here.place.module == here.place.maker.module) return here.place.maker.line;
  const auto line = reinterpret_cast<const char*>(call_python(placer, 0, "(i)", 0));
  return line ? line : "";
}

// What it returns, and what it writes to beside that.
std::vector<c10::IValue> results_of(const Context& at, at::ArrayRef<c10::IValue> outputs) {
  std::vector<c10::IValue> found = outputs.vec();
  const int training = at.row.op->training;
  if (training >= 0 && training < int(at.arguments.size()) && at.arguments[training].isBool() && !at.arguments[training].toBool()) return found;
  for (const size_t i : at.row.op->unreturned)
    if (i < at.arguments.size()) found.push_back(at.arguments[i]);
  return found;
}

// A node of a backward pass, or the optimizer.
std::unique_ptr<Observed> begin_around(const at::RecordFunction& fn, Here& here) {
  if (fn.scope() == at::RecordScope::USER_SCOPE) {
    if (std::strncmp(fn.name(), "Optimizer.step#", 15) != 0) return nullptr;
    here.optimizer++;
    return at_end([module = std::exchange(here.place.module, "")](Here& here) {
      here.place.module = module;
      here.optimizer--;
    });
  }
  here.backward++;
  const Maker maker = makers.find(fn.forwardThreadId(), fn.seqNr());
  return at_end([around = std::exchange(here.place, {maker.module, fn.name(), maker})](Here& here) {
    // Not a node that is called like a function.
    if (torch::autograd::get_current_node()) here.last = here.place, here.last_task = torch::autograd::get_current_graph_task_id();
    here.place = around;
    here.backward--;
  });
}

// A mode that traces what is called, with fake tensors or without.
bool is_traced() {
  using Modes = c10::impl::TorchDispatchModeTLS;
  using Key = c10::impl::TorchDispatchModeKey;
  return Modes::any_modes_set() && (Modes::get_mode(Key::FAKE) || Modes::get_mode(Key::PROXY));
}

// Whether a reader leaves it out of deterministic mode: an operator, or the backward pass of what one has made.
bool is_excepted(const at::RecordFunction& fn, const Here& here) {
  if (fn.scope() == at::RecordScope::BACKWARD_FUNCTION) return makers.find(fn.forwardThreadId(), fn.seqNr()).is_excepted;
  if (fn.scope() != at::RecordScope::FUNCTION) return false;
  const Operator& op = operator_of(fn);
  const auto leaves_it_out = [&](const Reader& one) { return one.excepts && is_chosen(one, op, here.place.module, 0); };
  return std::ranges::any_of(here.config->readers, leaves_it_out);
}

std::unique_ptr<Observed> begin_seen(const at::RecordFunction& fn, Here& here) try {
  if (fn.scope() != at::RecordScope::FUNCTION) return is_traced() ? nullptr : begin_around(fn, here);
  if (here.is_inside) {
    if (!here.may_call_python) return nullptr;
    return at_end([around = begin_running({&operator_of(fn), now(), here.place.module, caller_here()})](Here&) { end_running(around); });
  }
  const auto requested = here.config;
  if (!requested) return nullptr;
  if (is_traced()) {  // it is none of the program's, and what the mode makes of it is part of it
    auto nothing = std::make_unique<Context>();
    here.is_inside = true, here.may_call_python = false;
    return nothing;
  }
  const Operator& op = operator_of(fn);
  if (op.stands_for_others && !requested->errors) return nullptr;
  if (!op.has_schema && fn.seqNr() < 0) return nullptr;  // such as the guards of compiled code
  const int64_t id = here.wrapped.first == &op ? here.wrapped.second : ++operators;
  if (fn.seqNr() >= 0) makers.remember(fn.seqNr(), {here.place.module, line_of(here, *requested), id, here.excepted > 0});
  if (!op.has_schema) return nullptr;
  const auto given = own(fn.inputs(), op.arguments.size());
  if (has_wrapped(given))
    return at_end([around = std::exchange(here.wrapped, {&op, id})](Here& here) { here.wrapped = around; });
  here.wrapped = {};  // what a transform calls several times has rows of its own
  auto at = std::make_unique<Context>();
  Row& row = at->row;
  at->config = requested;
  row.id = id;
  row.step = step.load(std::memory_order_relaxed);
  row.op = &op;
  row.module = here.place.module;
  // What the engine runs between nodes, such as sums of gradients that were broadcast, belongs to the last one. A compiled backward pass
  // (compiled autograd) has none.
  const int64_t task = torch::autograd::get_current_graph_task_id();
  const bool is_between = !here.backward && task != -1;
  if (is_between && task != here.last_task) here.last = {}, here.last_task = task;
  row.direction = here.optimizer ? "optimizer" : here.backward || is_between ? "backward" : "forward";
  if (here.backward || is_between) {
    const Around& of = is_between ? here.last : here.place;
    if (is_between) row.module = of.maker.module;
    row.node = of.node;
    row.maker = of.maker.id;
    row.line = of.maker.line;
  }
  row.thread = thread_id();
  row.began = now();
  const Config& a = *requested;
  if (op.stands_for_others) {  // it is seen if it raises and none of those does
    at->arguments = given.vec();
    at->errors = here.errors;
    here.standing++;
    return at;
  }
  for (const Reader& one : a.readers)
    if ((one.inputs || one.outputs) && op.makes_data && is_chosen(one, op, row.module, id)) at->wanted.push_back({&one, row});
  if (!at->wanted.empty() || a.overflow || a.errors) at->arguments = given.vec();
  if (!at->wanted.empty() || a.overflow) {
    const Unseen unseen;
    for (auto& [by, found] : at->wanted)
      if (by->inputs) found.inputs = seen(at->arguments, found, "input", *by);
    for (size_t i = 0; a.overflow && op.makes_data && i < op.is_written.size() && i < at->arguments.size(); i++)
      if (op.is_written[i])
        for (const at::Tensor& t : tensors_in(at->arguments[i])) at->before.push_back(known_of(t));
  }
  if (a.recent) at->recent = remember(row, given);
  here.may_call_python =
      a.running && (!at::SavedTensorDefaultHooks::get_tls_state().stack.empty() || c10::impl::TorchDispatchModeTLS::any_modes_set());
  if (a.running) at->around = begin_running({&op, row.began, row.module, here.may_call_python ? caller_here() : 0});
  here.algorithm.clear();
  here.is_inside = true;
  return at;
} catch (const std::exception&) {  // no memory: this one is not seen
  dropped++;
  return nullptr;
}

std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& fn) {
  Here& here = glue::here;
  if (here.looks_away) return nullptr;
  update(here.config, here.version);
  const bool is_exception = here.config && here.config->excepts && is_excepted(fn, here);
  here.excepted += is_exception;
  auto begun = begin_seen(fn, here);
  if (!is_exception) return begun;
  if (!begun) begun = std::make_unique<Observed>();
  begun->is_exception = true;
  begin_exception();
  return begun;
}

void finish_failed(const Context& at) {
  if (!at.config->errors || error_in_python() == "_StopRecomputationError") return;  // a checkpoint has all that it needs
  here.errors++;
  const Unseen unseen;
  for (const Reader& one : at.config->readers) {
    if (!one.errors) continue;
    Row error = at.row;
    error.inputs = seen(at.arguments, error, "input", one);
    error.attributes = attributes_of(at.arguments, *at.row.op);
    hand_over(one, std::move(error), 1);
  }
}

void finish(const at::RecordFunction& fn, const Here& here, Context& at) {
  Row& row = at.row;
  const Operator& op = *row.op;
  row.took = now() - row.began;
  row.algorithm = here.algorithm;
  const bool has_failed = at.has_failed();
  if (at.recent) finish(at.recent, row, has_failed);
  if (has_failed && op.only_checks && here.standing) return;  // the one that called it has what went in
  if (has_failed) return finish_failed(at);
  if (at.wanted.empty() && !at.config->overflow) return;
  const Unseen unseen;
  const auto results = results_of(at, own(fn.outputs(), op.returns));
  for (const Reader& one : at.config->readers) {
    if (!one.overflow || !has_overflowed(op, one.overflow, at.arguments, at.before, tensors_in(results))) continue;
    Row found = row;
    found.inputs = seen(at.arguments, found, "input", one, &at.before);
    found.outputs = seen(results, found, "output", one);
    found.attributes = attributes_of(at.arguments, op);
    hand_over(one, std::move(found), 1);
  }
  static const Reader& describes = immortal<Reader>();  // alone
  for (auto& [by, found] : at.wanted) {
    found.took = row.took;
    found.algorithm = row.algorithm;
    found.outputs = seen(results, found, "output", by->outputs ? *by : describes);
    if (by->attributes) found.attributes = attributes_of(at.arguments, op);
    hand_over(*by, std::move(found), enough);
  }
}

void Context::end(const at::RecordFunction& fn, Here& here) {
  if (config && row.op->stands_for_others) {
    here.standing--;
    if (has_failed() && here.errors == errors) finish_failed(*this);
    return;
  }
  struct Outside {
    Here& here;
    ~Outside() { here.is_inside = false; }
  } outside{here};  // operators of what is called here are part of it, too
  if (!config) return;
  if (config->running) end_running(around);
  finish(fn, here, *this);
}

void end(const at::RecordFunction& fn, at::ObserverContext* given) try {
  if (!given) return;
  auto& begun = static_cast<Observed&>(*given);
  if (begun.is_exception) here.excepted--, end_exception();
  begun.end(fn, here);
} catch (const std::exception&) {
  dropped++;
}

void note_algorithm(const char* ran) {
  if (here.is_inside) here.algorithm = ran;
}

}  // namespace

}  // namespace msctx::glue

using namespace msctx;
using namespace msctx::glue;

// What each reader wants from now on, in this step, as JSON; an empty list: nothing is collected.
MSCTX_API void msctx_collect(
    const char* readers, int64_t step_now, PythonFunction on_rows, PythonFunction choose, PythonFunction place) {
  const Json given = Json::of(readers);
  const bool is_on = !given.members.empty();
  const auto wanted = is_on ? std::make_shared<Config>(given) : nullptr;
  const std::lock_guard<std::mutex> guard(collector_lock);
  set_readers(wanted, on_rows, choose);
  step = step_now;
  placer = place;
  on_algorithm = is_on ? note_algorithm : nullptr;
  if (is_on && callback == at::INVALID_CALLBACK_HANDLE) {
    callback = at::addGlobalCallback(at::RecordFunctionCallback(begin, end).needsInputs(true).needsOutputs(true).scopes(
        {at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION, at::RecordScope::USER_SCOPE}));
  } else if (!is_on && callback != at::INVALID_CALLBACK_HANDLE) {
    at::removeCallback(callback);
    callback = at::INVALID_CALLBACK_HANDLE;
  }
}

// A text for the life of the process, another one each time: a line of code, or a path, by which a module is known to msctx_enter_module.
MSCTX_API const void* msctx_text(const char* given) {
  const std::lock_guard<std::mutex> guard(collector_lock);
  static auto& texts = immortal<std::deque<std::string>>();
  return texts.emplace_back(given).c_str();
}

// The module whose forward pass runs in this thread from now on; nullptr: none. Returns the one before.
MSCTX_API const void* msctx_enter_module(const void* module) {
  return std::exchange(here.place.module, module ? static_cast<const char*>(module) : "");
}

// Whether what runs in this thread from now on is no operator of the program. Returns whether it was none before.
MSCTX_API int msctx_look_away(int looks_away) { return std::exchange(here.looks_away, looks_away != 0); }
