// One collector of what runs: every operator, in every thread, for whoever asks. Torch's RecordFunction calls it, where anybody does.
//
// An operator counts once: operators that it is made of belong to it, and those that only stand for others (linear, matmul) give way to
// them. Its module is the one whose forward pass runs; in a backward pass, the one in which the node of the graph was made.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "glue/observed.h"
#include "msctx/api.h"
#include "msctx/choices.h"
#include "msctx/json.h"
#include "msctx/process.h"

namespace msctx::glue {
namespace {

// What is asked for; Python has the same structure (observers/collector.py).
struct Asked {
  int32_t inputs, outputs;       // rows of what goes in, of what comes out
  int32_t statistics, digests;   // of these tensors
  int32_t tensors;               // these tensors as files in `folder`
  int32_t overflow;              // 1: of operators that compute, 2: of those that accumulate into memory; 4: what was not finite before, too
  int32_t errors;                // what goes into an operator that raises, as files
  int32_t recent;                // the last operators, in memory
  int32_t running;               // what runs now in each thread
  const char* folder;
};
struct Config {
  Asked asked;
  std::string folder;
  bool has_rows() const { return asked.inputs || asked.outputs; }
};

struct Operator {
  std::string name, overload;
  bool stands_for_others = false, makes_data = true, accumulates = false, puts_constants = false;
  std::vector<std::string> arguments;
  std::vector<bool> is_written, is_result;  // in place; given for the results alone (out=)
  bool has_schema = false, returns_tensors = true;
};

struct Seen {
  std::string argument, dtype, shape, device, file;
  bool is_read = false, has_digest = false, has_statistics = false;
  Statistics statistics;
  uint64_t digest = 0;
};

// One of the last operators: plain memory, for the handler of a fatal signal to read.
struct Recent {
  int64_t id, step, began, took;  // took: -1 while it runs, -2 where it raised
  const Operator* op;
  const char *module, *direction;
  uint64_t thread;
  char shapes[120], algorithm[40];
};

struct Row {
  int64_t id = 0, step = 0, sequence = -1, began = 0, took = 0;  // microseconds
  const Operator* op = nullptr;
  int module = 0;
  const char* direction = "forward";
  std::string node, algorithm, attributes, problem;
  uint64_t thread = 0;
  std::vector<Seen> inputs, outputs;
};

std::mutex& lock = fork_safe_mutex();
std::atomic<int64_t> operators{0}, step{0}, dropped{0};
std::shared_ptr<const Config> config;  // under the lock
std::atomic<int64_t> version{0};
at::CallbackHandle callback = at::INVALID_CALLBACK_HANDLE;
PythonFunction sink = nullptr;
PythonFunction chooser = nullptr;
constexpr size_t enough = 512, most = 1 << 16;  // rows that Python is asked to take; that wait for it at most
enum Queue { rows, overflows, errors, queues };
struct State {
  std::deque<Row> waiting[queues];
  std::deque<std::string> modules{""};  // they keep their places
  std::unordered_map<std::string, int> numbers{{"", 0}};
  std::map<std::pair<const Operator*, int>, bool> chosen;
  std::map<std::pair<std::string, std::string>, std::unique_ptr<Operator>> operators;
};
State& state() {
  static auto* all = new State;
  return *all;
}

// The nodes that a thread's forward pass makes are numbered; the module of each is kept for the last so many.
struct Forward {
  static constexpr int64_t kept = 1 << 16;
  std::vector<std::pair<int64_t, int>> modules = std::vector<std::pair<int64_t, int>>(kept, {-1, 0});
};
std::unordered_map<uint64_t, std::shared_ptr<Forward>>& forwards() {
  static auto* all = new std::unordered_map<uint64_t, std::shared_ptr<Forward>>;
  return *all;
}

struct Here {
  int module = 0;
  bool is_inside = false;
  int backward = 0, optimizer = 0;
  const char* node = "";
  std::string algorithm;  // that computed what runs, where it is ours or we know it
  std::shared_ptr<Forward> forward;
  std::shared_ptr<const Config> config;
  int64_t version = -1;
  std::unordered_map<const void*, const Operator*> known;
};
thread_local Here here;

struct Running {  // of each thread, for a watchdog
  std::atomic<const Operator*> op{nullptr};
  std::atomic<int64_t> began{0};
  std::atomic<int> module{0};
  uint64_t thread = 0;
};
std::vector<std::shared_ptr<Running>>& running() {
  static auto* all = new std::vector<std::shared_ptr<Running>>;
  return *all;
}
std::shared_ptr<Running>& running_here() {
  thread_local std::shared_ptr<Running> mine;
  if (!mine) {
    mine = std::make_shared<Running>();
    mine->thread = uint64_t(gettid());
    const std::lock_guard<std::mutex> guard(lock);
    auto& all = running();
    all.erase(std::remove_if(all.begin(), all.end(), [](const auto& one) { return one.use_count() == 1; }), all.end());
    all.push_back(mine);
  }
  return mine;
}

int64_t now() {
  using namespace std::chrono;
  return duration_cast<microseconds>(system_clock::now().time_since_epoch()).count();
}

const std::shared_ptr<const Config>& config_here() {
  if (const int64_t latest = version.load(std::memory_order_acquire); here.version != latest) {
    const std::lock_guard<std::mutex> guard(lock);
    here.config = config;
    here.version = latest;
  }
  return here.config;
}

const std::unordered_set<std::string> accumulating{
    "aten::scatter_add", "aten::scatter_add_", "aten::scatter_reduce", "aten::scatter_reduce_", "aten::index_add", "aten::index_add_",
    "aten::index_reduce", "aten::index_reduce_", "aten::embedding_dense_backward", "aten::index_put", "aten::index_put_",
    "aten::_index_put_impl_", "aten::put", "aten::put_", "aten::bincount", "aten::histc"};
// Their results are what somebody wrote there, such as the -inf of a mask.
const std::unordered_set<std::string> of_constants{
    "aten::fill", "aten::fill_", "aten::full", "aten::full_like", "aten::new_full", "aten::masked_fill", "aten::masked_fill_",
    "aten::scalar_tensor", "aten::constant_pad_nd", "aten::from_file", "aten::lift_fresh"};
// Their results hold nothing yet.
const std::unordered_set<std::string> of_nothing{
    "aten::empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty", "aten::new_empty_strided", "aten::empty_permuted",
    "aten::resize_", "aten::set_", "aten::_efficientzerotensor"};

std::unique_ptr<Operator> look_up(const std::string& name, const std::string& overload) {
  auto found = std::make_unique<Operator>();
  found->name = name;
  found->overload = overload;
  const auto handle = c10::Dispatcher::singleton().findSchema({name, overload});
  if (!handle) return found;
  found->has_schema = true;
  found->stands_for_others = handle->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) &&
                             !handle->hasKernelForDispatchKey(c10::DispatchKey::CPU);
  const c10::FunctionSchema& schema = handle->schema();
  bool writes = false, gives_views = false, gives_tensors = false;
  for (const c10::Argument& one : schema.arguments()) {
    const bool is_written = one.alias_info() && one.alias_info()->isWrite();
    found->arguments.push_back(one.name());
    found->is_written.push_back(is_written && !one.kwarg_only());
    found->is_result.push_back(is_written && one.kwarg_only());
    writes |= is_written;
  }
  for (const c10::Argument& one : schema.returns()) {
    gives_views |= one.alias_info() && !one.alias_info()->isWrite();
    gives_tensors |= one.type()->kind() != c10::TypeKind::IntType && one.type()->kind() != c10::TypeKind::BoolType;
  }
  found->returns_tensors = gives_tensors;
  found->makes_data = ((gives_tensors && !gives_views) || writes) && !of_nothing.count(name);
  found->accumulates = accumulating.count(name) > 0;
  found->puts_constants = of_constants.count(name) > 0;
  return found;
}

const Operator& operator_of(const at::RecordFunction& fn) {
  const char* name = fn.name();
  const char* overload = fn.overload_name();
  if (const auto found = here.known.find(name);
      found != here.known.end() && found->second->name == name && found->second->overload == overload)
    return *found->second;
  const std::lock_guard<std::mutex> guard(lock);
  auto& slot = state().operators[{name, overload}];
  if (!slot) slot = look_up(name, overload);
  if (here.known.size() > 4096) here.known.clear();
  here.known[name] = slot.get();
  return *slot;
}

bool is_chosen(const Operator& op, int module) {
  if (!chooser) return true;
  const std::pair key{&op, module};
  std::string path;
  {
    const std::lock_guard<std::mutex> guard(lock);
    if (const auto found = state().chosen.find(key); found != state().chosen.end()) return found->second;
    path = state().modules[size_t(module)];
  }
  const bool answer = call_python(chooser, 1, "(ss)", op.name.c_str(), path.c_str()) != 0;
  const std::lock_guard<std::mutex> guard(lock);
  return state().chosen[key] = answer;
}

constexpr int64_t most_recent = 1024;
Recent recent[most_recent];
std::atomic<int64_t> recent_count{0};

struct Context : at::ObserverContext {
  Recent* recent = nullptr;
  std::shared_ptr<const Config> config;
  Row row;
  std::vector<c10::IValue> arguments;
  std::vector<bool> had_nonfinite;  // of the arguments that are written to
  int64_t watched = 0;
  int exceptions = std::uncaught_exceptions();
  bool has_rows = false;
};
void copy(char* to, size_t room, const std::string& from) {
  std::strncpy(to, from.c_str(), room - 1);
  to[room - 1] = 0;
}

void record(Context& at) {
  const Row& row = at.row;
  at.recent = &recent[recent_count++ % most_recent];
  std::string shapes;
  for (const c10::IValue& value : at.arguments) {
    if (!value.isTensor() || !value.toTensor().defined() || shapes.size() > sizeof at.recent->shapes) continue;
    shapes += (shapes.empty() ? "" : " ") + std::string(c10::toString(value.toTensor().scalar_type())) + "[" + shape_of(value.toTensor()) + "]";
  }
  const char* module;
  {
    const std::lock_guard<std::mutex> guard(lock);
    module = state().modules[size_t(row.module)].c_str();
  }
  *at.recent = {row.id, row.step, row.began, -1, row.op, module, row.direction, row.thread, {}, {}};
  copy(at.recent->shapes, sizeof at.recent->shapes, shapes);
}

// Of a node of a backward pass, or of the optimizer.
struct Around : at::ObserverContext {
  int module = 0;
  const char* node = "";
};

Seen described(const at::Tensor& t, const std::string& argument) {
  Seen found;
  found.argument = argument;
  found.dtype = c10::toString(t.scalar_type());
  found.shape = shape_of(t);
  found.device = t.device().str();
  found.is_read = is_readable(t);
  return found;
}

void read(Seen& found, const at::Tensor& t, const Asked& asked) {
  if (!found.is_read) return;
  if (asked.statistics) found.statistics = statistics_of(t), found.has_statistics = true;
  if (asked.digests) found.digest = digest_of(t), found.has_digest = true;
}

// `what`: input or output.
void keep(Seen& found, const at::Tensor& t, const Config& given, int64_t id, const char* what, size_t slot, std::string& problem) {
  if (!found.is_read) return;
  const std::string file = std::to_string(getpid()) + "-" + std::to_string(id) + "." + what + "." + std::to_string(slot) + ".npy";
  try {
    write_npy(t, given.folder + "/" + file);
    found.file = file;
  } catch (const std::exception& error) {
    problem = error.what();
  }
}

std::vector<Seen> seen(const std::vector<c10::IValue>& values, const Operator& op, const Context& at, const char* what, bool reads, std::string& problem) {
  std::vector<Seen> found;
  const bool are_inputs = what[0] == 'i';
  for (size_t i = 0; i < values.size(); i++) {
    if (are_inputs && i < op.is_result.size() && op.is_result[i]) continue;
    std::vector<at::Tensor> tensors;
    tensors_in(values[i], tensors);
    for (const at::Tensor& t : tensors) {
      found.push_back(described(t, are_inputs && i < op.arguments.size() ? op.arguments[i] : ""));
      if (!reads) continue;
      read(found.back(), t, at.config->asked);
      if (at.config->asked.tensors) keep(found.back(), t, *at.config, at.row.id, what, found.size() - 1, problem);
    }
  }
  return found;
}

std::string attributes_of(const std::vector<c10::IValue>& values, const Operator& op) {
  std::string json = "{";
  int tensors = 0;
  for (size_t i = 0; i < values.size(); i++) {
    if (i) json += ',';
    quote(json, i < op.arguments.size() ? op.arguments[i] : std::to_string(i));
    json += ':';
    write_json(json, values[i], tensors);
  }
  return json + "}";
}

void hand_over(Queue queue, Row&& row) {
  size_t waiting;
  {
    const std::lock_guard<std::mutex> guard(lock);
    auto& all = state().waiting[queue];
    all.push_back(std::move(row));
    if (all.size() > most) all.pop_front(), dropped++;
    waiting = all.size();
  }
  if (queue != rows || waiting >= enough) call_python(sink, 0, "(i)", int(queue));
}

std::unique_ptr<at::ObserverContext> begin_around(const at::RecordFunction& fn) {
  auto around = std::make_unique<Around>();
  around->module = here.module;
  around->node = here.node;
  if (fn.scope() == at::RecordScope::USER_SCOPE) {
    if (std::strncmp(fn.name(), "Optimizer.step#", 15) != 0) return nullptr;
    here.optimizer++;
    here.module = 0;
    return around;
  }
  here.backward++;
  here.node = fn.name();
  here.module = 0;
  if (fn.seqNr() >= 0) {
    const std::lock_guard<std::mutex> guard(lock);
    if (const auto found = forwards().find(fn.forwardThreadId()); found != forwards().end()) {
      const auto& [number, module] = found->second->modules[size_t(fn.seqNr() % Forward::kept)];
      if (number == fn.seqNr()) here.module = module;
    }
  }
  return around;
}

void remember_node(const at::RecordFunction& fn) {
  if (!here.forward) {
    const std::lock_guard<std::mutex> guard(lock);
    auto& slot = forwards()[at::RecordFunction::currentThreadId()];
    if (!slot) slot = std::make_shared<Forward>();
    here.forward = slot;
  }
  here.forward->modules[size_t(fn.seqNr() % Forward::kept)] = {fn.seqNr(), here.module};
}

std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& fn) try {
  if (fn.scope() != at::RecordScope::FUNCTION) return begin_around(fn);
  if (here.is_inside) return nullptr;
  const auto& asked = config_here();
  if (!asked) return nullptr;
  const Operator& op = operator_of(fn);
  if (fn.seqNr() >= 0) remember_node(fn);
  if (op.stands_for_others || !op.has_schema) return nullptr;
  for (const c10::IValue& value : fn.inputs())
    if (value.isTensor() && value.toTensor().defined() && is_wrapped(value.toTensor())) return nullptr;
  auto at = std::make_unique<Context>();
  Row& row = at->row;
  at->config = asked;
  row.id = ++operators;
  row.step = step.load(std::memory_order_relaxed);
  row.op = &op;
  row.sequence = fn.seqNr();
  row.module = here.module;
  row.direction = here.optimizer ? "optimizer" : here.backward ? "backward" : "forward";
  if (here.backward) row.node = here.node;
  row.thread = uint64_t(gettid());
  row.began = now();
  const Asked& a = asked->asked;
  at->has_rows = asked->has_rows() && op.makes_data && is_chosen(op, row.module);
  at->arguments.assign(fn.inputs().begin(), fn.inputs().end());
  if (at->has_rows && a.inputs) {
    const Unseen unseen;
    row.inputs = seen(at->arguments, op, *at, "input", true, row.problem);
  }
  if (a.overflow && op.makes_data)
    for (size_t i = 0; i < op.is_written.size() && i < at->arguments.size(); i++) {
      if (!op.is_written[i]) continue;
      const Unseen unseen;
      std::vector<at::Tensor> tensors;
      tensors_in(at->arguments[i], tensors);
      for (const at::Tensor& t : tensors) at->had_nonfinite.push_back(is_readable(t) && has_nonfinite(t));
    }
  if (a.recent) record(*at);
  Running& mine = *running_here();
  mine.module = row.module;
  mine.began = row.began;
  mine.op = &op;
  here.algorithm.clear();
  here.is_inside = true;
  return at;
} catch (const std::exception&) {  // no memory: this one is not seen
  return nullptr;
}

// A kind of what is not finite: NaN 1, Inf 2, -Inf 4.
int kinds_of(const Statistics& s) { return (s.nan > 0) | (s.positive_inf > 0) << 1 | (s.negative_inf > 0) << 2; }

bool is_number_nonfinite(const c10::IValue& value) {
  return (value.isDouble() && !std::isfinite(value.toDouble())) ||
         (value.isScalar() && value.toScalar().isFloatingPoint() && !std::isfinite(value.toScalar().toDouble()));
}

// Whether its results hold what is not finite and nothing that went into it does; or what did is passed on, and that is asked for.
bool has_overflowed(const Context& at, const std::vector<c10::IValue>& outputs) {
  const Operator& op = *at.row.op;
  const int wanted = at.config->asked.overflow;
  if (!op.makes_data || op.puts_constants || !(wanted & (op.accumulates ? 2 : 1))) return false;
  for (const c10::IValue& value : at.arguments)
    if (is_number_nonfinite(value)) return false;
  std::vector<at::Tensor> results;
  for (const c10::IValue& value : outputs) tensors_in(value, results);
  int kinds = 0;
  for (const at::Tensor& t : results)
    if (is_readable(t) && has_nonfinite(t)) kinds |= kinds_of(statistics_of(t));
  if (!kinds) return false;
  const bool is_passed_on = (wanted & 4) != 0;
  for (const bool one : at.had_nonfinite)
    if (one) return is_passed_on;
  int given = 0;
  for (size_t i = 0; i < at.arguments.size(); i++) {
    if (i < op.is_written.size() && (op.is_written[i] || op.is_result[i])) continue;
    std::vector<at::Tensor> tensors;
    tensors_in(at.arguments[i], tensors);
    for (const at::Tensor& t : tensors)
      if (is_readable(t) && has_nonfinite(t)) given |= kinds_of(statistics_of(t));
  }
  // Inf becomes NaN, and 1/-0 -Inf: what was not finite is passed on. A mask's -Inf has made no NaN before.
  return given == 0 || (given == 4 ? (kinds & 3) != 0 : is_passed_on);
}

void finish(const at::RecordFunction& fn, Context& at) {
  Row& row = at.row;
  const Operator& op = *row.op;
  const Asked& a = at.config->asked;
  row.took = now() - row.began;
  row.algorithm = here.algorithm;
  const bool has_failed = std::uncaught_exceptions() > at.exceptions;
  if (at.recent && at.recent->id == row.id) {
    at.recent->took = has_failed ? -2 : row.took;
    copy(at.recent->algorithm, sizeof at.recent->algorithm, row.algorithm);
  }
  const Unseen unseen;
  if (has_failed) {
    if (!a.errors) return;
    Row error = row;
    Context files;  // what went in, whatever else is asked for
    auto wanted = std::make_shared<Config>(*at.config);
    wanted->asked.tensors = wanted->asked.statistics = 1;
    files.config = wanted;
    files.row.id = row.id;
    error.inputs = seen(at.arguments, op, files, "input", true, error.problem);
    error.attributes = attributes_of(at.arguments, op);
    hand_over(errors, std::move(error));
    return;
  }
  if (a.overflow && has_overflowed(at, fn.outputs())) {
    Row found = row;
    Context statistics;
    auto wanted = std::make_shared<Config>(*at.config);
    wanted->asked.statistics = 1;
    statistics.config = wanted;
    statistics.row.id = row.id;
    wanted->asked.tensors = !wanted->folder.empty();
    found.inputs = seen(at.arguments, op, statistics, "input", true, found.problem);
    found.outputs = seen(fn.outputs(), op, statistics, "output", true, found.problem);
    found.attributes = attributes_of(at.arguments, op);
    hand_over(overflows, std::move(found));
  }
  if (at.has_rows) {
    row.outputs = seen(fn.outputs(), op, at, "output", a.outputs != 0, row.problem);
    hand_over(rows, std::move(row));
  }
}

void end(const at::RecordFunction& fn, at::ObserverContext* given) try {
  if (!given) return;
  if (auto* around = dynamic_cast<Around*>(given)) {
    here.module = around->module;
    here.node = around->node;
    (fn.scope() == at::RecordScope::USER_SCOPE ? here.optimizer : here.backward)--;
    return;
  }
  auto& at = static_cast<Context&>(*given);
  running_here()->op = nullptr;
  struct Outside {
    ~Outside() { here.is_inside = false; }
  } outside;  // operators of what is called here are part of it, too
  finish(fn, at);
} catch (const std::exception&) {
  dropped++;
}

void note_algorithm(const Choice& choice) {
  if (here.is_inside) here.algorithm = choice.ran;
}

void write(std::string& json, const std::vector<Seen>& all) {
  const auto number = [&](const char* name, double v) {
    char text[64];
    std::snprintf(text, sizeof text, std::isfinite(v) ? "\"%s\":%.17g," : "\"%s\":null,", name, v);
    json += text;
  };
  json += '[';
  for (const Seen& one : all) {
    json += '{';
    member(json, "argument", one.argument);
    member(json, "shape", one.shape);
    member(json, "device", one.device);
    member(json, "file", one.file);
    if (one.has_digest) json += "\"digest\":" + std::to_string(one.digest) + ",";
    if (one.has_statistics) {
      const Statistics& s = one.statistics;
      const int64_t finite = s.count - s.nan - s.positive_inf - s.negative_inf;
      number("min", s.least);
      number("max", s.largest);
      number("mean", finite ? s.sum / double(finite) : NAN);
      number("l2", std::sqrt(s.squares));
      const std::pair<const char*, int64_t> counts[] = {{"count", s.count}, {"nan", s.nan}, {"positive_inf", s.positive_inf},
                                                        {"negative_inf", s.negative_inf}, {"zero", s.zero}, {"negative", s.negative}};
      for (const auto& [name, count] : counts) json += std::string("\"") + name + "\":" + std::to_string(count) + ",";
    }
    member(json, "dtype", one.dtype);
    json.back() = '}';
    json += ',';
  }
  if (json.back() == ',') json.pop_back();
  json += "],";
}

std::string json_of(const Row& row) {
  std::string json = "{";
  const std::pair<const char*, int64_t> numbers[] = {{"id", row.id}, {"step", row.step}, {"sequence", row.sequence}, {"began", row.began},
                                                     {"took", row.took}, {"thread", int64_t(row.thread)}};
  for (const auto& [name, number] : numbers) json += std::string("\"") + name + "\":" + std::to_string(number) + ",";
  member(json, "operator", row.op->name);
  member(json, "overload", row.op->overload);
  member(json, "module", state().modules[size_t(row.module)]);
  member(json, "direction", row.direction);
  member(json, "node", row.node);
  member(json, "algorithm", row.algorithm);
  member(json, "problem", row.problem);
  json += "\"inputs\":";
  write(json, row.inputs);
  json += "\"outputs\":";
  write(json, row.outputs);
  json += "\"attributes\":" + (row.attributes.empty() ? "{}" : row.attributes);
  return json + "}";
}

std::string recent_as_json() {
  std::string json = "[";
  const int64_t count = recent_count;
  for (int64_t i = std::max<int64_t>(0, count - most_recent); i < count; i++) {
    const Recent& one = recent[i % most_recent];
    if (!one.op) continue;
    json += '{';
    const std::pair<const char*, int64_t> numbers[] = {
        {"id", one.id}, {"step", one.step}, {"began", one.began}, {"took", one.took}, {"thread", int64_t(one.thread)}};
    for (const auto& [name, number] : numbers) json += std::string("\"") + name + "\":" + std::to_string(number) + ",";
    member(json, "operator", one.op->name);
    member(json, "module", one.module);
    member(json, "direction", one.direction);
    member(json, "shapes", one.shapes);
    member(json, "algorithm", one.algorithm);
    json.back() = '}';
    json += ',';
  }
  if (json.back() == ',') json.pop_back();
  return json + "]";
}

// --- fatal signals: nothing here allocates, locks or formats by the C library ---

constexpr int fatal[] = {SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL};
struct sigaction handled_before[std::size(fatal)];
bool is_handling = false;
char fatal_file[1024];

struct Out {
  int file;
  void text(const char* t) const { [[maybe_unused]] const auto written = ::write(file, t, std::strlen(t)); }
  void number(int64_t n) const {
    char digits[24];
    char* at = digits + sizeof digits - 1;
    *at = 0;
    const bool is_negative = n < 0;
    for (uint64_t left = is_negative ? uint64_t(-n) : uint64_t(n); left || !*at; left /= 10) *--at = char('0' + left % 10);
    if (is_negative) *--at = '-';
    text(at);
  }
};

void put_back_handlers() {
  for (size_t i = 0; i < std::size(fatal); i++) sigaction(fatal[i], &handled_before[i], nullptr);
}

void on_fatal(int number) {
  put_back_handlers();
  const Out out{::open(fatal_file, O_WRONLY | O_CREAT | O_EXCL, 0644)};
  if (out.file >= 0) {
    out.text("================== execution order ==================\nfatal signal ");
    out.number(number);
    out.text(", process ");
    out.number(getpid());
    out.text(", thread ");
    out.number(gettid());
    out.text("\n");
    const int64_t count = recent_count;
    for (int64_t i = count > most_recent ? count - most_recent : 0; i < count; i++) {
      const Recent& one = recent[i % most_recent];
      if (!one.op) continue;
      out.number(one.id);
      out.text(one.took == -1 ? ":\trunning\t" : ":\t");
      for (const char* part : {one.op->name.c_str(), "\t", one.module, "\t", one.direction, "\t", (const char*)one.shapes, "\tthread "}) out.text(part);
      out.number(int64_t(one.thread));
      out.text("\n");
    }
    ::close(out.file);
  }
  raise(number);
}

std::string json_of(const std::deque<Row>& all) {
  std::string json = "[";
  for (const Row& row : all) json += json_of(row) + ",";
  if (json.back() == ',') json.pop_back();
  return json + "]";
}

}  // namespace

}  // namespace msctx::glue

using namespace msctx;
using namespace msctx::glue;

// What is asked for from now on; nullptr: nothing. 0: there was no memory for it.
MSCTX_API int msctx_collect(const Asked* asked, PythonFunction on_rows, PythonFunction choose) try {
  auto wanted = asked ? std::make_shared<Config>(Config{*asked, asked->folder}) : nullptr;
  const std::lock_guard<std::mutex> guard(lock);
  config = wanted;
  sink = on_rows;
  chooser = choose;
  on_count = asked ? note_algorithm : nullptr;
  state().chosen.clear();
  version++;
  if (asked && callback == at::INVALID_CALLBACK_HANDLE) {
    callback = at::addGlobalCallback(at::RecordFunctionCallback(begin, end).needsInputs(true).needsOutputs(true).scopes(
        {at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION, at::RecordScope::USER_SCOPE}));
  } else if (!asked && callback != at::INVALID_CALLBACK_HANDLE) {
    at::removeCallback(callback);
    callback = at::INVALID_CALLBACK_HANDLE;
  }
  return 1;
} catch (const std::exception&) {
  return 0;
}

MSCTX_API void msctx_collect_step(int64_t number) { step = number; }

// The number of a module's path.
MSCTX_API int msctx_module_number(const char* path) try {
  const std::lock_guard<std::mutex> guard(lock);
  const auto [found, is_new] = state().numbers.try_emplace(path, int(state().modules.size()));
  if (is_new) state().modules.push_back(path);
  return found->second;
} catch (const std::exception&) {
  return 0;
}

// The module whose forward pass runs in this thread from now on; the one before.
MSCTX_API int msctx_enter_module(int number) { return std::exchange(here.module, number); }

// The rows that wait: 0, of what was asked for; 1, of overflows; 2, of errors; 3, of the last operators, which stay. As JSON, to be freed.
MSCTX_API char* msctx_collected(int queue) try {
  std::deque<Row> taken;
  const std::lock_guard<std::mutex> guard(lock);
  if (queue >= queues) return strdup(recent_as_json().c_str());
  taken.swap(state().waiting[queue]);
  return strdup(json_of(taken).c_str());
} catch (const std::exception&) {
  return nullptr;
}

// Where a fatal signal writes the last operators before it ends the process as it would have; "": it does not.
MSCTX_API void msctx_record_fatal(const char* file) {
  const std::lock_guard<std::mutex> guard(lock);
  const bool is_wanted = *file != 0;
  copy(fatal_file, sizeof fatal_file, file);
  if (is_wanted == is_handling) return;
  is_handling = is_wanted;
  if (!is_wanted) {
    for (size_t i = 0; i < std::size(fatal); i++) {
      struct sigaction now;
      if (sigaction(fatal[i], nullptr, &now) == 0 && now.sa_handler == on_fatal) sigaction(fatal[i], &handled_before[i], nullptr);
    }
    return;
  }
  struct sigaction ours = {};
  ours.sa_handler = on_fatal;
  ours.sa_flags = SA_ONSTACK | SA_NODEFER;
  for (size_t i = 0; i < std::size(fatal); i++) sigaction(fatal[i], &ours, &handled_before[i]);
}

// Rows that nobody took in time.
MSCTX_API int64_t msctx_collect_dropped() { return dropped.exchange(0); }

// What runs now in each thread, and since when (microseconds of the epoch). As JSON, to be freed.
MSCTX_API char* msctx_running() try {
  std::string json = "[";
  const std::lock_guard<std::mutex> guard(lock);
  for (const auto& one : running()) {
    const Operator* op = one->op.load();
    if (!op) continue;
    json += "{\"thread\":" + std::to_string(one->thread) + ",\"began\":" + std::to_string(one->began.load()) + ",";
    member(json, "operator", op->name);
    member(json, "module", state().modules[size_t(one->module.load())]);
    json.back() = '}';
    json += ',';
  }
  if (json.back() == ',') json.pop_back();
  return strdup((json + "]").c_str());
} catch (const std::exception&) {
  return nullptr;
}
