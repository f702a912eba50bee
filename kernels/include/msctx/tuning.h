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
  enum Standing : int32_t { other_stamp, same_stamp, here } standing;  // whether its stamp is in all that of this process, which measured it
  bool is_settled;         // else this process measures it again: not enough have agreed
  double again;            // A/A of torch's own path in the same rounds: how far apart two of its runs were
  std::vector<Measured> measured;
};

// What a result holds for, beside the number of threads. Each tuning file has a table of its own.
struct TuningKey {
  int32_t table;
  std::string direction, problem, permissions;
  auto operator<=>(const TuningKey&) const = default;
};

// The first result that was learned is kept, one that this process measured before that of a file. nullptr: there is none.
constexpr int any_threads = 0;  // the largest number that is known
const Tuned* tuned(const TuningKey&, int threads, bool exact_only);
void learn(const TuningKey&, int threads, Tuned);
// Records a problem for Python to keep in the file, to be measured in another process, and why. False: there are too many.
bool record(const TuningKey&, int threads, const char* why = "");
// A result for Python to keep in the file.
void report(const TuningKey&, int threads, const Tuned&);

// The answer of Python when a problem is about to be measured, and while it is.
enum class Permission : int32_t {
  now,
  later,         // not for a second, in no thread: memory is near its cap
  for_next_run,  // rank 0 of several processes: measured, not used before the next run
  other_rank,    // one of the others
  not_this_call,  // code is being compiled or traced in this thread, or what a signal's handler raised is on its way
  busy,           // more threads are runnable than there are cores
};
// Why a problem is not measured for now, and runs torch's own path: what gains beside other load need not gain without.
inline constexpr const char* beside_load = "not measured: more threads were runnable than there are cores";
inline bool is_put_off(Permission said) { return said == Permission::later || said == Permission::not_this_call; }
// `table`: the one that the result is for, by which Python knows the kind of device. `later` and `busy` are remembered for a second, unless
// it is asked `anew`: to ask costs more than a small convolution, and each call of a problem that is not measured yet asks.
Permission permission(int32_t table, bool anew = false);

}  // namespace msctx
