// What is requested, as a snapshot that does not change, and what it decides for each call: decided once, then looked up. Policies that ask
// for the same are one: what was decided stays decided when a context is entered again. What ran is counted, in books.
#pragma once

#include <atomic>
#include <compare>
#include <memory>
#include <memory_resource>
#include <type_traits>
#include <unordered_map>

#include "msctx/json.h"
#include "msctx/table.h"

namespace msctx {

// --- calls in words (call.cpp) ----------------------------------------------------------------------------------------

static_assert(std::has_unique_object_representations_v<ConvCall>, "padding would make two keys of one call");

// What choices() and rules show of a call; the shapes are torch's. An extent that is the same along all axes is written once.
struct ConvText {
  std::string input, weight, stride, padding, dilation, output_padding, groups, transposed, dtype, layout, epilogue, module;
  bool operator==(const ConvText&) const = default;
};
// All of its fields, by the names that Python has for them.
inline constexpr std::pair<const char*, std::string ConvText::*> fields_of_text[] = {
    {"input", &ConvText::input}, {"weight", &ConvText::weight}, {"stride", &ConvText::stride}, {"padding", &ConvText::padding},
    {"dilation", &ConvText::dilation}, {"output_padding", &ConvText::output_padding}, {"groups", &ConvText::groups},
    {"transposed", &ConvText::transposed}, {"dtype", &ConvText::dtype}, {"layout", &ConvText::layout},
    {"epilogue", &ConvText::epilogue}, {"module", &ConvText::module}};
ConvText text_of(const ConvCall&);
// A text of Reasons with the numbers of the call.
std::string filled(const char* reason, const ConvCall&);
// The problem in a line, without its module: as choices() prints it.
std::string line_of(const ConvText&);

// --- where rules hold, what ran, and why: one row for each distinct call, counted (choices.cpp) -----------------------

// Where a rule holds.
class Conditions {
 public:
  // `rule`: a ConvRule of Python's (msctx/options/algorithm_policy.py).
  explicit Conditions(const Json& rule);
  bool hold_for(const ConvText&) const;

  // Calls, of all rules with these conditions: policies count here what books ask for. They live as long as the process.
  struct Met {
    std::atomic<int64_t> compared{0}, held{0};
  };
  Met& met() const { return *met_; }

 private:
  std::vector<std::pair<std::string, std::string>> all_;
  Met* met_;
};

struct Choice {
  Direction direction{};
  std::string requested, ran, provider, math;
  ConvText problem;
  double error = 0.0;      // the row's bound; 0: none is stated
  int64_t workspace = 0;   // bytes
  std::vector<std::string> reasons;
};

// One in the log, as JSON, without its counts.
using Logged = std::shared_ptr<const std::string>;
Logged logged(const Choice&);

// What is counted of it.
struct Counts {
  int64_t calls = 0, weights_kept = 0, weights_prepared = 0;  // the latter: forms of weights that were found, that were made
  int64_t computed_again = 0;
};
// `books`: those opened when the call began. It counts in none that was opened later: it may run by what held before.
void count(const Logged&, const Counts&, int64_t books);
int64_t books_opened();

// What was counted while something was open: a process, a context. A context's is opened once its policy is in force, and closed before
// that is put back.
struct Book {
  explicit Book(std::vector<Conditions> rules = {}) : rules_(std::move(rules)) {}
  void open();
  void close();
  ~Book() { close(); }

  // As JSON, in the order in which they were met.
  std::string rows() const;
  // The first of its rules, from this one on, for which there was no call since it was opened, though there were others under it. -1: none.
  int unmatched(int from) const;

 private:
  friend void count(const Logged&, const Counts&, int64_t);
  struct Row {
    Logged choice;
    int64_t met, used = 0;  // when it was first counted here, and last, in counts
    Counts counts = {};
  };

  const std::vector<Conditions> rules_;
  std::vector<std::pair<int64_t, int64_t>> rules_at_opening_;  // Conditions::Met
  int64_t opened_ = 0, dropped_ = 0;                           // opened_: its number among all
  std::pmr::unsynchronized_pool_resource pool_;                // between tensors, rows would keep the memory of these apart
  std::pmr::unordered_map<std::string_view, Row> counted_{&pool_};  // by their JSON
};

// --- how fast rows are on single problems: measured by this process, or read from a file by Python (tuning.cpp) -------

// One contender's time in units of the winner's; 0: it could not be measured.
struct Measured {
  std::string label;
  double ratio;
};

struct Tuned {
  std::string name = {}, math = {};  // the row that is to be taken; "torch", "torch": torch's own path
  std::string source = {};           // where this is from, for choices()
  bool is_from_file = false;      // else this process has measured it
  double again = 1.0;            // A/A of torch's own path in the same rounds: how far apart two of its runs were
  std::vector<Measured> measured = {};
};

// What a result holds for, beside the number of threads. Each tuning file has a table of its own.
struct TuningKey {
  int32_t table;
  std::string direction, problem, permissions;
  auto operator<=>(const TuningKey&) const = default;
};

// The first result that was learned is kept, one that this process measured before that of a file. nullptr: there is none.
constexpr int any_threads = 0;  // the largest number that is known
const Tuned* tuned(const TuningKey&, int threads);
void learn(const TuningKey&, int threads, Tuned);
// Records a problem for Python to keep in the file, to be measured in another process, and why.
void record(const TuningKey&, int threads, const char* why = "");
// A result for Python to keep in the file.
void report(const TuningKey&, int threads, const Tuned&);

// Why a problem is not measured for now, and runs torch's own path: what gains under other load need not gain without.
inline constexpr const char* beside_load = "not measured: more threads were runnable than there are cores";
inline bool is_put_off(Permission said) { return said == Permission::later || said == Permission::not_this_call; }
// `table`: the one that the result is for, by which Python knows the kind of device. `later` and `busy` are remembered for a second, unless
// it is asked `anew`: to ask costs more than a small convolution, and each call of a problem that is not measured yet asks.
Permission permission(int32_t table, bool anew = false);

// --- policies ---------------------------------------------------------------------------------------------------------

// `normal` and `performance` take only rows whose bound is at most this, where no other is given.
constexpr double largest_error = 3e-5, largest_tf32_error = 1e-2;
// `performance` tries no algorithm with a larger workspace: 1 GB.
constexpr size_t largest_trial = size_t(1) << 30;

std::string in_words(double number);  // the fewest digits that give it back

// A decision, and what belongs to it.
struct Made : Decision {
  Logged choice;                   // nullptr: nothing is requested
  std::vector<bool> held;          // for which rules of the policy: their conditions
  std::string warning_text, error_text;
  bool is_beside_load = false;
};
using Decided = std::shared_ptr<const Made>;  // nullptr: nothing is requested in this direction

// Each field, and each of Taken, is read from the field of Python's ConvPolicy (msctx/options/algorithm_policy.py) of its name.
class Policy : public Taken {
 public:
  Policy(const Json&, const ConvTable&);

  // `threads` are those that torch would use.
  Decided decide(const ConvCall&, Direction, int threads);
  // Decides a call of `performance` anew, for good: by the result that is known by now, or as `normal` would, and why.
  Decided decide_again(const ConvCall&, Direction, int threads, const std::string& why_not_measured);
  // A call that is not ours to compute: to be refused.
  Decided refuse(Direction, const ConvText&, const std::string& reason);

  // The rows that `performance` may take for a call, the likely ones first.
  std::vector<const ConvRow*> candidates(const ConvCall&, Direction) const;
  // What a tuning result for the call holds for.
  TuningKey tuning_key(const ConvCall&, Direction) const;
  // That result, if it may be used.
  const Tuned* tuned_for(const ConvCall&, Direction, int threads) const;

  // Returns whether the result had to be computed again.
  bool compute(
      const ConvRow&, const ConvProblem&, Op, const ConvTensors&, const Kept*, const Memory&, const Parallel&) const;

 private:
  struct Rule {
    Conditions conditions;
    std::string requested[directions];  // empty: the rule leaves that open
    bool is_for(Direction) const;
  };
  std::vector<bool> holding(const ConvText&, Direction) const;
  void note(const std::vector<bool>& held, Direction) const;
  std::string requested_for(Direction, const std::vector<bool>& held) const;
  std::string requested_by_option(Direction) const;
  bool asks(Direction d) const { return requests >> int(d) & 1; }
  bool allows_math(const ConvRow&, const std::string& requested = "") const;
  // torch states no bounds of its errors.
  bool allows_torch(const ConvCall& call) const { return !thread_invariant || (call.torch_keeps_bits && matmul_max_error == 0.0); }
  double most_error(Direction d) const { return d == Direction::matmul ? matmul_max_error : max_error; }
  // Whether a row computes each image by itself, since others would decide how it computes one.
  bool takes_images_apart(const ConvRow&) const;
  // On how many of these threads to run an algorithm: one, where its workspace for all would be above the limit.
  int threads_for(const ConvRow&, const ConvProblem&, Op, int threads) const;
  const ConvRow* named(const ConvCall&, Direction, Choice&) const;
  std::vector<std::string> obstacles(const ConvRow&, const ConvCall&) const;
  static double error_of(const ConvRow&, const ConvCall&);
  bool is_exact(const ConvRow&, const ConvCall&) const;
  double allowed_error(const ConvRow&) const;
  std::string too_inexact(const ConvRow&) const;
  // Whether images of a batch must not decide how another is computed. Weight gradients are sums over all.
  bool keeps_images_apart(Direction d) const { return batch_invariant && (d == Direction::fprop || d == Direction::dgrad); }
  // Whether others of a batch decide how a row computes one: see conv_run.
  bool looks_at_all(const ConvRow&) const;
  // What decides on a call: of its images one, where others must not.
  ConvCall deciding(const ConvCall&, Direction) const;
  const char* invariance() const { return batch_invariant ? "batch_invariant" : "thread_invariant"; }
  const ConvRow* guess(const ConvCall&, Direction, Choice&) const;
  std::unique_ptr<Made> make(const ConvCall&, Direction, int threads, const std::string& why_not_measured) const;
  // Whether an algorithm that was named does not run.
  bool choose(const ConvCall&, Direction, int threads, const std::string& why_not_measured, Choice&, Made&) const;
  void tune(const ConvCall&, Direction, int threads, const std::string& why_not_measured, Choice&, Made&) const;
  bool follows(const Tuned&, const ConvCall&, Direction, Choice&, Made&) const;
  void describe(Choice&, const ConvRow*, const ConvCall&, Op, int threads) const;
  std::string complaint(const Choice&, const ConvCall&, Direction) const;
  void complete(Made&, const Choice&, const std::string& error) const;
  Decided known(const std::string& key);
  Decided keep(const std::string& key, Decided, bool instead = false);

  const Json given;
  const int64_t workspace_limit = given["conv_workspace_limit"].integer(-1);  // bytes; negative: none
  // That a row may have for `normal` and `performance`; 0: see largest_error.
  const double max_error = given["conv_max_error"].number(), matmul_max_error = given["matmul_max_error"].number();
  // Python replaces the two paths by the numbers of their tables: that of the tuning results which `performance` looks into, and that in
  // which problems are recorded, to be measured later; 0: none.
  const int32_t tuning = int32_t(given["tuning_file"].integer()), recording = int32_t(given["work_path"].integer());
  const bool deterministic = given["deterministic"].is_on(), matmul_allow_tf32 = given["matmul_allow_tf32"].is_on();
  std::string requested_[directions];
  std::vector<Rule> rules_;
  const ConvTable& table_;
  const ConvAlgorithm* safe_;  // what conv_run falls back to
  std::unordered_map<std::string, Decided> decisions_;
};

// How much `normal` expects of a row for a call: 0, where torch's own path is as good a guess.
int rank_of(const ConvRow&, const ConvCall&);
Merit merit_of(const ConvRow&, const ConvCall&);

// A row's name, and its arithmetic where that is not float32's own.
std::string label_of(const std::string& name, const std::string& math);
inline std::string label_of(const ConvRow& row) { return label_of(row.name, row.algorithm->math); }

// What msctx_take gives, with what belongs to it.
struct Call : Taken {
  const std::shared_ptr<Policy> policy;
  const int64_t books;            // how many were opened by then: see count
  Decided decided[directions]{};  // the last decisions
};
inline Call& call_of(const Taken* taken) { return *const_cast<Call*>(static_cast<const Call*>(taken)); }

}  // namespace msctx
