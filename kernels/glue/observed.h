// What observers are told of operators: who wants what of them, and what is read of their tensors and other arguments.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <atomic>
#include <memory>
#include <optional>

#include "glue/operators.h"
#include "msctx/json.h"
#include "glue/python.h"
#include "msctx/conv.h"

namespace msctx::glue {

// --- tensors: nothing here is seen by autograd, by modes or by observers -----------------------------------------------

// While it lives, operators that this thread calls go to the back end at once.
struct Unseen {
  at::DisableRecordFunctionGuard unrecorded;
  c10::impl::ExcludeDispatchKeyGuard below{
      c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset | c10::python_ks |
      c10::DispatchKeySet(
          {c10::DispatchKey::FuncTorchDynamicLayerFrontMode, c10::DispatchKey::FuncTorchDynamicLayerBackMode,
           c10::DispatchKey::FuncTorchBatched, c10::DispatchKey::FuncTorchVmapMode, c10::DispatchKey::PreDispatch,
           c10::DispatchKey::Functionalize, c10::DispatchKey::Tracer})};
};

// Why it is no plain dense tensor: a subclass, traced, wrapped, without data, of another layout. nullptr: it is one.
const char* why_unreadable(const at::Tensor&);
inline bool is_readable(const at::Tensor& t) { return !why_unreadable(t); }
// Whether a subclass or a transform computes one of the tensors by operators of its own.
bool has_wrapped(at::ArrayRef<c10::IValue>);
bool has_nonfinite(const at::Tensor&);  // of floating-point and complex ones
Statistics statistics_of(const at::Tensor&);
std::optional<Statistics> known_of(const at::Tensor&);  // nothing where it cannot be read
// Those of lists included.
template <class Use>
void each_tensor(at::ArrayRef<c10::IValue> values, const Use& use) {
  for (const c10::IValue& value : values) {
    if (value.isTensor() && value.toTensor().defined()) use(value.toTensor());
    if (value.isList()) each_tensor(value.toListRef(), use);
  }
}
inline std::vector<at::Tensor> tensors_in(at::ArrayRef<c10::IValue> values) {
  std::vector<at::Tensor> found;
  each_tensor(values, [&](const at::Tensor& t) { found.push_back(t); });
  return found;
}

// What one reader wants: each member reads its field of Python's (msctx/observers/operator_events.py).
struct Reader {
  Json given;
  int64_t reader = given["reader"].integer();    // whose queue the rows go to: a number that no other reader has had, above 0
  std::string files = given["folder"].text;      // its folder
  bool inputs = wants("inputs"), outputs = wants("outputs");           // rows of what goes in, of what comes out
  bool statistics = wants("statistics"), digests = wants("digests");   // of the tensors in its rows
  bool tensors = wants("tensors");                                     // these tensors as files
  // 1: rows of operators that compute, 2: of those that accumulate into memory; 4: what was not finite before, too
  int overflow = int(given["overflow"].integer());
  bool errors = wants("errors");          // a row of an operator that raises
  bool recent = wants("recent");          // the last operators, in memory
  bool running = wants("running");        // what runs now in each thread
  bool excepts = wants("excepts");        // what it chooses is left out of deterministic mode
  bool attributes = wants("attributes");  // the arguments that are no tensors
  bool lines = wants("lines");            // of the program, of the nodes that are made
  bool chooses = wants("chooses");        // among operators

 private:
  bool wants(const char* name) const { return given[name].integer() != 0; }
};
struct Config {
  std::vector<Reader> readers;
  bool overflow = false, errors = false, recent = false, running = false, excepts = false, lines = false;  // that any of them wants

  explicit Config(const Json& readers);
};

// They ask from now on, in place of those before; nullptr: nobody does. Python's functions take rows, and choose operators.
void set_readers(std::shared_ptr<const Config>, PythonFunction take, PythonFunction choose);
// The latest of them, for a thread that knows the one of `version`; -1: none yet.
void update(std::shared_ptr<const Config>& known, int64_t& version);
// Whether a reader wants the operator with this id, in a module.
bool is_chosen(const Reader& by, const Operator&, const char* module, int64_t id);

// A tensor that went into an operator or came out of it.
struct Seen {
  std::string argument, dtype, shape, strides, device, file;
  std::string unread;  // why it is not; "": it is, where somebody asks
  bool requires_grad = false, has_digest = false, has_statistics = false;
  bool is_written = false;  // by the operator, in place or as a result (out=)
  Statistics statistics;
  uint64_t digest = 0;
};

// An operator that ran.
struct Row {
  int64_t id = 0, step = 0, maker = -1, began = 0, took = 0;  // maker: of the node that it computes; microseconds
  const Operator* op = nullptr;
  const char* module = "";  // its path
  const char* direction = "forward";
  const char* line = "";  // of the maker
  std::string node, algorithm, attributes, problem;  // problem: why a file could not be written
  std::string shapes;                                // of the last operators
  uint64_t thread = 0;
  std::vector<Seen> inputs, outputs;
};

// `what`: input or output. `before`: of the arguments that are written to, in order, where it is too late to read them (see known_of).
std::vector<Seen> seen(
    const std::vector<c10::IValue>& values, Row&, const char* what, const Reader&,
    const std::vector<std::optional<Statistics>>* before = nullptr);
// The arguments as JSON: numbers, texts, lists; a tensor as {"tensor": its place among the tensors of the call}; dtypes and the like as
// {"torch": name}.
std::string attributes_of(const std::vector<c10::IValue>& values, const Operator&);
std::string json_of(const Row&);

constexpr size_t enough = 512;
// Once so many wait, Python is asked to take them.
void hand_over(const Reader& to, Row&&, size_t enough_of_them);
extern std::atomic<int64_t> dropped;  // what nobody took in time, or could not be seen

// Keeps it as one of the last operators; it runs.
Row* remember(const Row&, at::ArrayRef<c10::IValue> arguments);
// It has ended.
void finish(Row* remembered, const Row&, bool has_failed);

// What runs in a thread, for a watchdog.
struct Running {
  const Operator* op = nullptr;
  int64_t began = 0;
  const char* module = "";
  long caller = 0;     // of an operator that may call Python: the frame of Python that called it, by its identity
  uint64_t ident = 0;  // of the thread, as Python knows it
};
// In this thread. Returns what ran until then: an operator of which Python, or nothing.
Running begin_running(Running);
void end_running(const Running& before);

// Whether its results hold what is not finite and nothing that went into it does: an infinity is passed on, with either sign. A reader may want what is passed on, too: then NaN, and what a parameter holds, is reported, and what
// cannot be read. `wanted`: see Reader. `before`: what was known of the arguments that are written to.
bool has_overflowed(
    const Operator&, int wanted, const std::vector<c10::IValue>& arguments,
    const std::vector<std::optional<Statistics>>& before, const std::vector<at::Tensor>& results);

// Deterministic mode is off while an operator runs that is left out of it.
void begin_exception();
void end_exception();

}  // namespace msctx::glue
