// Where rules hold. And what ran, and why: one row for each distinct call, counted; what has not been used for longest goes first.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "msctx/call.h"
#include "msctx/json.h"

namespace msctx {

// Where a rule holds. The same conditions are one object: policies note in it what books ask of it.
class Conditions {
 public:
  // `rule`: a ConvRule of Python's (msctx/options/conv_policy.py).
  static std::shared_ptr<Conditions> of(const Json& rule);

  // `any_module`: or may, for a call whose module is not known yet.
  bool hold_for(const ConvText&, bool any_module = false) const;

  // A call was compared with them; `books` as in count.
  void note(bool held, int64_t books);
  // Whether calls that began when this many books had been opened, or more, were compared with them, and they held for none.
  bool failed_since(int64_t books) const { return compared_ >= books && held_ < books; }

 private:
  std::vector<std::pair<std::string, std::string>> all_;
  std::atomic<int64_t> compared_{-1}, held_{-1};  // the largest `books` so far
};

struct Choice {
  std::string direction, asked, ran, provider, math;
  ConvText problem;
  double error = 0.0;      // the row's bound; 0: none is stated
  int64_t workspace = 0;   // bytes
  std::vector<std::string> reasons;

  // The log's, under its lock.
  int64_t number = 0;  // in the order in which they were first met, from 1 on
  int64_t used = 0;    // when it was last counted, in counts
  int64_t computed_again = 0;
};

// The equal one in the log, or this one from now on.
std::shared_ptr<Choice> record(std::unique_ptr<Choice>);

// What is counted of a choice.
struct Counts {
  int64_t calls = 0, weights_kept = 0, weights_prepared = 0;  // the latter: forms of weights that were found, that were made
};
// `books`: of books_opened, taken before the call's policy.
void count(const std::shared_ptr<Choice>&, const Counts&, bool computed_again, int64_t books);
// Called with each choice of ours before it computes, and with each that is counted, when it has, in the thread that computes; nullptr:
// nobody is.
extern std::atomic<void (*)(const Choice&)> on_choice;
inline void tell(const Choice& choice) {
  if (const auto told = on_choice.load(std::memory_order_relaxed)) told(choice);
}

// How many books have been opened until now. A call counts in none that was opened after it began: it may run by what held before.
int64_t books_opened();

// What was counted while something was open: a process, a context. A call belongs to all that are open. To count costs the same with any
// number of them: it is counted for the one that was opened last, which gives what it has to the one before when it closes. A context's
// is opened once its policy is in force, and closed before that is put back.
class Book {
 public:
  static constexpr size_t most_rows = 4096;

  explicit Book(std::vector<std::shared_ptr<Conditions>> rules = {}) : rules_(std::move(rules)) {}
  void open();
  void close();
  ~Book();

  // As JSON, in the order of their numbers.
  std::string rows() const;
  // The first of its rules, from this one on, for which there was no call since it was opened, though there were others under it. -1: none.
  int unmatched(int from) const;

 private:
  struct Rows {
    std::unordered_map<std::shared_ptr<Choice>, Counts> counted;
    int64_t dropped = 0;
    void add(const std::shared_ptr<Choice>&, const Counts&);
    void add(const Rows&);
  };
  friend void count(const std::shared_ptr<Choice>&, const Counts&, bool, int64_t);
  Rows latest() const;  // what was counted since it was opened; the lock is held

  const std::vector<std::shared_ptr<Conditions>> rules_;
  Rows before_, own_;
  int64_t opened_ = 0;  // its number among all; the process's comes first
};

}  // namespace msctx
