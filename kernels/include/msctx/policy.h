// What is requested, as a snapshot that does not change, and what it decides for each call: decided once, then looked up. Policies that ask
// for the same are one: what was decided stays decided when a context is entered again.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "msctx/choices.h"
#include "msctx/tuning.h"

namespace msctx {

// Where a policy holds: each kind of device has its own, and its own table.
enum class Place : int32_t { cpu, cuda, ascend };
constexpr int places = 3;

enum class Fallback : int32_t { warn, error, silent };
inline Fallback fallback_of(const std::string& name) {
  return name == "error" ? Fallback::error : name == "silent" ? Fallback::silent : Fallback::warn;
}

// What holds for all calls. Each member reads its field of Python's ConvPolicy (msctx/options/conv_policy.py) by that name.
struct PolicyOptions {
  Json given;
  int64_t workspace_limit = given["conv_workspace_limit"].integer(-1);  // bytes; negative: none
  // that a row may have for `normal` and `performance`; 0: see largest_error
  double max_error = given["conv_max_error"].number(), matmul_max_error = given["matmul_max_error"].number();
  Fallback fallback = fallback_of(given["fallback"].text);
  // Python replaces the two paths by the numbers of their tables: that of the tuning results which `performance` looks into, and that in
  // which problems are recorded, to be measured later; 0: none.
  int32_t tuning = int32_t(given["tuning_file"].integer()), recording = int32_t(given["work_path"].integer());
  bool deterministic = given["deterministic"].is_on();
  bool thread_invariant = given["thread_invariant"].is_on();
  bool batch_invariant = given["batch_invariant"].is_on();            // thread_invariant is then set, too
  bool torch_keeps_products = given["torch_keeps_products"].is_on();  // the bits of torch's own matrix products depend on neither
  bool allow_tf32 = given["conv_allow_tf32"].is_on(), matmul_allow_tf32 = given["matmul_allow_tf32"].is_on();
  bool allow_fp32_emulation = given["allow_fp32_emulation"].is_on();
  bool frozen_weights = given["frozen_weights"].is_on();  // a weight is looked at once while this policy is in force
};

// `normal` and `performance` take only rows whose bound is at most this, where no other is given.
constexpr double largest_error = 3e-5, largest_tf32_error = 1e-2;
// `performance` tries no algorithm with a larger workspace: 1 GB.
constexpr size_t largest_trial = size_t(1) << 30;

std::string in_words(double number);  // the fewest digits that give it back

// The warning of an algorithm which did not run.
std::string in_short(const Choice&);

struct Decision {
  const ConvRow* row = nullptr;  // null: torch's own path
  std::shared_ptr<Choice> choice;  // nullptr: nothing is requested
  std::vector<bool> held;        // for which rules of the policy: their conditions
  bool fell_back = false;        // the named algorithm did not run
  bool to_measure = false;       // `performance`, and too few have measured this problem: row is what they found, or that of `normal`
  std::string message;           // for the warning or the error of a fallback
  bool recorded = false;
};
using Decided = std::shared_ptr<const Decision>;  // nullptr: nothing is requested in this direction

class Policy : public PolicyOptions {
 public:
  Policy(const char* json, const ConvTable&);

  // `threads` are those that torch would use; `books` as in count.
  Decided decide(const ConvCall&, Direction, int threads, int64_t books);
  // Decides a call of `performance` anew, for good: by the result that is known by now, or as `normal` would, and why.
  Decided decide_again(const ConvCall&, Direction, int threads, const std::string& why_not_measured);
  // A call that is not ours to compute: to be refused.
  Decided refuse(Direction, const ConvText&, const std::string& reason, int64_t books);

  // Whether an algorithm is requested in this direction, for some call at least.
  bool asks(Direction) const;
  // Whether a row of ours would compute the call, whose module is not known yet: under some of the rules that may hold for it.
  bool may_compute(const ConvCall&, Direction, int threads) const;

  // The rows that `performance` may take for a call, the likely ones first.
  std::vector<const ConvRow*> candidates(const ConvCall&, Direction) const;
  // What a tuning result for the call holds for.
  TuningKey tuning_key(const ConvCall&, Direction) const;
  // That result, if it may be used.
  const Tuned* tuned_for(const ConvCall&, Direction, int threads) const;

  const ConvTable& table() const { return table_; }
  // Whether a row computes each image by itself, since others would decide how it computes one.
  bool takes_images_apart(const ConvRow&) const;
  // On how many of these threads to run an algorithm: one, where its workspace for all would be above the limit.
  int threads_for(const ConvRow&, const ConvProblem&, Op, int threads) const;

  std::atomic<int64_t> number{0};  // from 1 on: another one each time that it comes into force
  mutable std::atomic<int64_t> warned[directions]{};  // by Direction: the number under which a warning was issued

 private:
  struct Rule {
    std::shared_ptr<Conditions> conditions;
    std::string asked[directions];  // empty: the rule leaves that open
    bool is_for(Direction) const;
  };
  std::vector<bool> holding(const ConvText&, Direction) const;
  void note(const std::vector<bool>& held, Direction, int64_t books) const;
  std::string asked_for(Direction, const std::vector<bool>& held) const;
  std::string asked_by_option(Direction) const;
  bool allows_math(const ConvRow&, const std::string& asked = "") const;
  // torch states no bounds of its errors.
  bool allows_torch(const ConvCall& call) const { return !thread_invariant || (call.torch_keeps_bits && matmul_max_error == 0.0); }
  double most_error(Direction d) const { return d == Direction::matmul ? matmul_max_error : max_error; }
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
  std::unique_ptr<Decision> make(const ConvCall&, Direction, int threads, const std::string& why_not_measured) const;
  void choose(const ConvCall&, Direction, int threads, const std::string& why_not_measured, Choice&, Decision&) const;
  void tune(const ConvCall&, Direction, int threads, const std::string& why_not_measured, Choice&, Decision&) const;
  bool follows(const Tuned&, const ConvCall&, Direction, Choice&, Decision&) const;
  void describe(Choice&, const ConvRow*, const ConvCall&, Op, int threads) const;
  std::string complaint(const Choice&, const ConvCall&, Direction) const;
  Decided known(const std::string& key);
  Decided keep(const std::string& key, Decided, bool instead = false);

  std::string asked_[directions];
  std::vector<Rule> rules_;
  const ConvTable& table_;
  const ConvAlgorithm* safe_;  // what conv_run falls back to
  std::unordered_map<std::string, Decided> decisions_, before_;  // the latest ones, and those before them: see keep
};

// How much `normal` expects of a row for a call: 0, where torch's own path is as good a guess.
int rank_of(const ConvRow&, const ConvCall&);
Merit merit_of(const ConvRow&, const ConvCall&);

// A row's name, and its arithmetic where that is not float32's own.
std::string label_of(const std::string& name, const std::string& math);
inline std::string label_of(const ConvRow& row) { return label_of(row.name, row.algorithm->math); }

// The policy in force, or nullptr. `in_force` is the one load that a convolution costs when there is none.
extern std::atomic<bool> has_policy[places];
inline bool in_force(Place place) { return has_policy[int(place)].load(std::memory_order_relaxed); }
// The same of the policy's asking for matrix products.
extern std::atomic<bool> has_products[places];
inline bool asks_for_products(Place place) { return has_products[int(place)].load(std::memory_order_relaxed); }
// As a call takes it; `books` is how many were opened by then: see count.
struct Taken {
  std::shared_ptr<Policy> policy;
  int64_t books;
};
Taken policy(Place);
void set_policy(Place, const char* json, const ConvTable&);  // nullptr: none
// Something has changed on which decisions depend, or one was made by what holds for now: policies that come into force decide anew.
void decide_anew();

}  // namespace msctx
