// `performance`: the rows that can take a problem are run in turns with torch's own path, once, which is left only for a gain that is
// proven; see tuning.cpp for what follows.
#include "common/policy.h"

#include <algorithm>
#include <chrono>
#include <optional>

#include "common/run.h"
#include "msctx/process.h"

namespace msctx {
namespace {

constexpr double gain = 1.03;            // what a row must gain over torch's own path
constexpr double gain_of_few = 1.1;      // the same where there was time for few rounds, in each of them
constexpr double gain_without_order = 1.1;  // what a row that adds in no order must gain over those that have one
constexpr size_t few = 5, enough = 9, most = 61;  // rounds
constexpr double tiny_time = 0.001, short_time = 0.02, long_time = 0.1;  // seconds: small problems are noisier, and cost nothing
constexpr double budget = 1.5;  // seconds for our first runs of one problem, for the rounds, and for those that confirm
constexpr double asking = 0.05;  // seconds after which permission is requested again: somebody may have interrupted the process
constexpr double never = 1e30;  // the time of what was not run

using Clock = std::chrono::steady_clock;
double since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

struct Contender {
  const ConvRow* row = nullptr;  // null: torch's own path
  std::vector<double> times = {};  // of each round
  double best = never;
  bool in_race = true, fails = false;
  bool in_order() const { return row->algorithm->fixed_order; }
};

struct Verdict {
  size_t winner = 0;  // 0: torch's own path
  size_t rival = 0;   // the best of those that add in a fixed order
  bool is_doubtful = false;  // more rounds might find a winner
  double gain = 1.0;  // of the winner, in three quarters of the rounds
  double again = 1.0;  // A/A: how far apart two runs of torch's own path in one round are, in the middle
};

// `all`: torch's own path, which is the first of each round, the same again, which is the last, and the rows, which ran between. A row
// wins if three quarters of its rounds gain more than torch's own path differs from itself; of few rounds the worst one counts.
Verdict verdict(const std::vector<Contender>& all) {
  const std::vector<double> &first = all[0].times, &last = all[1].times;
  const size_t rounds = last.size(), low = rounds < few ? 0 : rounds / 4;
  Verdict found;
  if (rounds == 0) return found;
  std::vector<double> values(rounds);
  for (size_t i = 0; i < rounds; i++) values[i] = std::max(first[i], last[i]) / std::min(first[i], last[i]);
  std::sort(values.begin(), values.end());
  found.again = values[rounds < few ? rounds - 1 : rounds / 2];
  double needed = std::max(rounds < few ? gain_of_few : gain, found.again), ordered = 1.0;
  for (const bool in_order : {true, false}) {
    if (!in_order) needed = std::max(needed, gain_without_order * ordered);
    for (size_t c = 2; c < all.size(); c++) {
      if (!all[c].in_race || all[c].in_order() != in_order || all[c].times.size() != rounds) continue;
      for (size_t i = 0; i < rounds; i++) values[i] = (first[i] + last[i]) / 2 / all[c].times[i];
      std::sort(values.begin(), values.end());
      found.is_doubtful |= values[low] < needed && values[rounds - 1 - low] >= needed;
      if (in_order && values[low] > ordered) ordered = values[low], found.rival = c;
      if (values[low] >= std::max(needed, found.gain)) found.winner = c, found.gain = values[low];
    }
  }
  return found;
}

class Race {
 public:
  Race(const std::vector<const ConvRow*>& rows, const Contest& run, int32_t table) : run_(run), table_(table), contenders_(2) {
    for (const ConvRow* row : rows) contenders_.push_back({row});
  }

  // nullopt: torch's own path itself fails, whose error is for the call to raise; or it shall be measured later.
  std::optional<Tuned> result() try {
    if (run_.prepare) prepare();
    warm_up();
    std::vector<size_t> runners;
    for (size_t c = 2; c < contenders_.size(); c++)
      if (contenders_[c].in_race) runners.push_back(c);
    Verdict found = after_rounds(runners);
    // The fastest of several may be so by luck: it has to win once more.
    if (found.winner && contenders_[found.winner].in_order()) found = after_rounds({found.winner});
    else if (found.winner) found = after_rounds(found.rival ? std::vector{found.winner, found.rival} : std::vector{found.winner});
    check();
    if (is_busy()) return std::nullopt;
    return tuned(found);
  } catch (const Stopped&) {
    return std::nullopt;
  }

  // Others had the processor at more than a quarter of the times that we looked: programs wake up for a moment on any machine.
  bool is_busy() const { return 4 * busy_ > looks_; }

 private:
  struct Stopped {};

  void check() {
    const Permission said = permission(table_, true);
    if (is_put_off(said)) throw Stopped();
    busy_ += said == Permission::busy;
    if (++looks_ >= 4 && is_busy()) throw Stopped();
    looked_at_ = Clock::now();
  }

  void run(Contender& c) {
    if (since(looked_at_) >= asking) check();
    double seconds = run_.seconds(run_.arg, c.row);
    if (seconds < 0 && !c.row) throw Stopped();
    if (seconds < 0) seconds = never;  // such as out of memory
    c.times.push_back(seconds);
    c.best = std::min(c.best, seconds);
    c.in_race = seconds < never;
    best_ = std::min(best_, c.best);
  }

  void prepare() {
    for (Contender& c : contenders_) {
      if (since(looked_at_) >= asking) check();
      c.fails = !run_.prepare(run_.arg, c.row);
    }
  }

  // The likely ones come first. A first run makes primitives, threads and pages, which counts where it takes no time at all. What a single
  // run would throw out runs again: it may have waited for a core.
  void warm_up() {
    auto start = Clock::now();
    for (Contender& c : contenders_) {
      c.in_race = !c.row || (!c.fails && since(start) < budget);
      if (!c.in_race) continue;
      run(c);
      const double first = c.best;
      const bool once_more = (first < long_time || first > 2.0 * best_) && (first < short_time || first < 10 * best_);
      for (int i = first < tiny_time ? 3 : once_more; i > 0 && c.in_race; i--) run(c);
      if (!c.row) start = Clock::now();  // however long it takes, ours have their time
    }
    drop(2.0);
  }

  // What is slower than the best by this factor is not run again; torch's own path always is.
  void drop(double factor) {
    for (Contender& c : contenders_)
      if (c.row && c.best > factor * best_) c.in_race = false;
  }

  // In turns, so that what the machine does meanwhile meets all of them; ours in another order each time.
  Verdict after_rounds(std::vector<size_t> runners) {
    const auto start = Clock::now();
    for (Contender& c : contenders_) c.times.clear();
    Verdict found;
    for (size_t round = 0; round < most && !runners.empty(); round++) {  // there is one at least
      double cost = 2 * contenders_[0].best;
      for (const size_t c : runners) cost += contenders_[c].best;
      if (round && since(start) + cost > budget) break;
      if (round >= enough && since(start) > short_time && (found.winner || !found.is_doubtful)) break;
      run(contenders_[0]);
      for (size_t i = 0; i < runners.size(); i++) run(contenders_[runners[(i + round) % runners.size()]]);
      run(contenders_[1]);
      if (round >= 3) drop(1.3);
      std::erase_if(runners, [&](size_t c) { return !contenders_[c].in_race; });
      found = verdict(contenders_);
    }
    return found;
  }

  Tuned tuned(const Verdict& found) const {
    const Contender& winner = contenders_[found.winner];
    Tuned result{"torch", "torch", "measured in this process", false, found.again, {{"torch", found.gain}}};
    if (winner.row) {
      result.name = winner.row->name;
      result.math = winner.row->algorithm->math;
    }
    for (const Contender& c : contenders_)
      if (c.row) result.measured.push_back({label_of(*c.row), c.best < never ? c.best / winner.best : 0.0});
    return result;
  }

  const Contest& run_;
  const int32_t table_;
  int busy_ = 0, looks_ = 1;  // how often others had the processor, of how often we looked
  Clock::time_point looked_at_ = Clock::now();
  std::vector<Contender> contenders_;  // torch's own path first, and again
  double best_ = never;
};

std::mutex& measuring = fork_safe_mutex(false);  // held while torch and the kernels run: only ever tried, never waited for
thread_local bool here = false;                  // torch's own path may lead back, through another library's kernel
constexpr double total_budget = 120.0;           // seconds of this process
std::atomic<double> spent{0.0};

constexpr const char* kept_for_next_run =
    "measured for the next run: the processes of one run all choose by what the tuning file held when it began";

// `guessed` where no decision can be made at this call.
Decided measured(Policy& policy, const ConvCall& call, const Decided& guessed, Direction direction, int threads, const Contest& run) {
  if (here || forks) return guessed;
  const std::unique_lock<std::mutex> mine(measuring, std::try_to_lock);
  if (!mine.owns_lock()) return guessed;
  here = true;
  const std::unique_ptr<bool, void (*)(bool*)> guard(&here, [](bool* flag) { *flag = false; });
  std::string why;
  const TuningKey key = policy.tuning_key(call, direction), for_next_run{~key.table, key.direction, key.problem, key.permissions};
  if (!policy.tuned_for(call, direction, threads)) {  // else another module has had the same problem
    if (spent > total_budget)
      return policy.decide_again(call, direction, threads, "this process has spent its " + in_words(total_budget) + " seconds of measuring");
    const Permission said = permission(key.table);
    if (is_put_off(said) || (said == Permission::busy && guessed->is_beside_load)) return guessed;
    if (said == Permission::busy) why = beside_load;
    if (said == Permission::other_rank) why = "of several processes only rank 0 measures, and the tuning file did not have it";
    if (said == Permission::for_next_run && tuned(for_next_run, threads)) why = kept_for_next_run;
    if (why.empty()) {
      const auto start = Clock::now();
      Race race(policy.candidates(call, direction), run, key.table);
      const auto result = race.result();
      spent = spent + since(start);
      if (result) {
        report(key, threads, *result);
        if (said == Permission::for_next_run) why = kept_for_next_run;
        learn(why.empty() ? key : for_next_run, threads, *result);
      } else if (!race.is_busy()) {
        return guessed;
      } else {
        why = beside_load;
      }
    }
    if (why == beside_load) record(key, threads, "under other load");
  }
  return policy.decide_again(call, direction, threads, why);
}

}  // namespace

int msctx_measure(
    const Taken* taken, const ConvCall* given, Direction direction, int threads, const Contest* contest, const Decision** decision) {
  return done([&] {
    Call& call = call_of(taken);
    Decided& decided = call.decided[int(direction)];
    decided = measured(*call.policy, *given, decided, direction, threads, *contest);
    *decision = decided.get();
  });
}

double msctx_measuring_seconds() { return spent; }

}  // namespace msctx
