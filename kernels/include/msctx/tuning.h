// What is known of how fast the rows are on single problems: measured by this process, or read from a tuning file by Python.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <vector>

namespace msctx {

// One contender's time in units of the winner's; 0: it could not be measured.
struct Measured {
  std::string label;
  double ratio;
};

struct Tuned {
  std::string name, math;  // the row that is to be taken; "torch", "torch": torch's own path
  std::string source;      // where this is from, for choices()
  bool exact;              // its stamp is in all that of this process
  std::vector<Measured> measured;
};

// What a result holds for, beside the number of threads. Each tuning file has a table of its own.
struct TuningKey {
  int32_t table;
  std::string direction, problem, permissions;
  auto operator<=>(const TuningKey&) const = default;
};

// The first result that was learned is kept: choices do not change while a process runs. nullptr: there is none.
const Tuned* tuned(const TuningKey&, int threads, bool exact_only);
// The same for whatever number of threads; the largest one that is known.
const Tuned* tuned_for_any_threads(const TuningKey&, bool exact_only);
void learn(const TuningKey&, int threads, Tuned);
// Records a problem for Python to keep in the file, to be measured in another process. False: there are too many.
bool record(const TuningKey&, int threads);
// A result for Python to keep in the file.
void report(const TuningKey&, int threads, const Tuned&);

// The answer of Python when a problem is about to be measured, and while it is.
enum class Permission : int32_t {
  now,
  later,         // not for a second, in no thread: memory is near its cap
  for_next_run,  // rank 0 of several processes: measured, not used before the next run
  other_rank,    // one of the others
  forked,        // a worker that was forked before the library was loaded
  not_this_call,  // code is being compiled or traced in this thread, or what a signal's handler raised is on its way
};
inline bool is_put_off(Permission said) { return said == Permission::later || said == Permission::not_this_call; }
// `table`: the one that the result is for, by which Python knows the kind of device. `later` is remembered: to ask costs more than a small
// convolution, and each call of a problem that is not measured yet asks.
Permission permission(int32_t table);

}  // namespace msctx
