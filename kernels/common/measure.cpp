// Measures a problem: torch's own path is left only for a gain that is proven.
#include "msctx/measure.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <optional>

#include "msctx/api.h"
#include "msctx/process.h"

namespace msctx {
namespace {

constexpr double gain = 1.03;          // what a row must gain over torch's own path
constexpr double gain_of_few = 1.25;   // the same where there was time for few rounds
constexpr double sure_gain = 1.2;      // above it the best of many cannot be the best by luck alone
constexpr double near_gain = 1.15;     // below it more rounds are worth their time
constexpr int few = 5, enough = 9, most = 61;  // rounds
constexpr double tiny_time = 0.001, short_time = 0.02, long_time = 0.1;  // seconds: small problems are noisier, and cost nothing
constexpr double budget = 1.5;         // seconds for our first runs of one problem, for the rounds, and for those that confirm
constexpr double asking = 0.05;         // seconds after which permission is asked for again: somebody may have interrupted the process
constexpr double never = 1e30;         // the time of what was not run

using Clock = std::chrono::steady_clock;
double since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

struct Contender {
  const ConvRow* row;         // null: torch's own path
  std::vector<double> times;  // of each round
  double best = never;
  bool in_race = true, fails = false;
};

class Race {
 public:
  Race(const std::vector<const ConvRow*>& rows, const Run& run, int32_t table) : run_(run), table_(table), contenders_{{nullptr, {}}} {
    for (const ConvRow* row : rows) contenders_.push_back({row, {}});
  }

  // nullopt: torch's own path itself fails, whose error is for the call to raise; or it shall be measured later.
  std::optional<Tuned> result() try {
    if (run_.prepare) prepare();
    warm_up();
    if (torch().best >= never) return std::nullopt;
    run_rounds(all_in_race());
    const Contender* winner = fastest_proven();
    if (winner && torch().best < sure_gain * winner->best) winner = confirmed(*winner);
    return tuned(winner ? *winner : torch());
  } catch (const Stopped&) {
    return std::nullopt;
  }

 private:
  struct Stopped {};
  Contender& torch() { return contenders_.front(); }

  double time(const Contender& c) const {
    try {
      return run_.seconds(c.row);
    } catch (const std::exception&) {  // such as out of memory
      return never;
    }
  }

  void check() {
    if (since(asked_) < asking) return;
    if (is_put_off(permission(table_))) throw Stopped();
    asked_ = Clock::now();
  }

  void run(Contender& c) {
    check();
    const double seconds = time(c);
    c.times.push_back(seconds);
    c.best = std::min(c.best, seconds);
    c.in_race = seconds < never;
    best_ = std::min(best_, c.best);
  }

  void prepare() {
    for (Contender& c : contenders_) {
      check();
      try {
        run_.prepare(c.row);
      } catch (const std::exception&) {
        c.fails = true;
      }
    }
  }

  // The likely ones come first. A first run makes primitives, threads and pages, which counts where it takes no time at all.
  void warm_up() {
    auto start = Clock::now();
    for (Contender& c : contenders_) {
      c.in_race = !c.fails && (&c == &torch() || since(start) < budget);
      if (!c.in_race) continue;
      run(c);
      const double first = c.best;
      const int more = first < tiny_time ? 3 : first < long_time && (first < short_time || first < 10 * best_) ? 1 : 0;
      for (int i = 0; i < more && c.in_race; i++) run(c);
      c.times.clear();
      if (&c == &torch()) start = Clock::now();  // however long it takes, ours have their time
    }
    drop(2.0);
  }

  // What is slower than the best by this factor is not run again; torch's own path always is.
  void drop(double factor) {
    for (Contender& c : contenders_)
      if (c.row && c.best > factor * best_) c.in_race = false;
  }

  std::vector<Contender*> all_in_race() {
    std::vector<Contender*> found;
    for (Contender& c : contenders_)
      if (c.in_race) found.push_back(&c);
    return found;
  }

  // In turns, so that what the machine does meanwhile meets all of them; each round begins with another one.
  void run_rounds(std::vector<Contender*> runners) {
    const auto start = Clock::now();
    for (int round = 0; round < most && runners.size() > 1; round++) {  // so there is one of ours
      double cost = 0;
      for (const Contender* c : runners) cost += round ? c->best : 0.0;  // there is one at least
      if (since(start) + cost > budget) break;
      if (round >= enough && since(start) > short_time && !is_doubtful()) break;
      for (size_t i = 0; i < runners.size(); i++) run(*runners[(i + size_t(round)) % runners.size()]);
      if (round >= 3) drop(1.3);
      std::erase_if(runners, [](const Contender* c) { return !c->in_race; });
    }
  }

  bool is_doubtful() {
    const auto by_best = [](const Contender& a, const Contender& b) { return a.best < b.best; };
    const Contender& ours = *std::min_element(contenders_.begin() + 1, contenders_.end(), by_best);
    return torch().best > ours.best / near_gain && (torch().best < ours.best * near_gain || !is_proven(ours));
  }

  // The fastest run, the middle one of the runs side by side, and two thirds of them must all speak for it.
  bool is_proven(const Contender& c) {
    const size_t rounds = std::min(c.times.size(), torch().times.size());
    if (rounds == 0 || !c.in_race) return false;
    std::vector<double> ratios;
    for (size_t i = 0; i < rounds; i++) ratios.push_back(torch().times[i] / c.times[i]);
    std::sort(ratios.begin(), ratios.end());
    const double needed = rounds < few ? gain_of_few : gain;
    return torch().best >= needed * c.best && ratios[rounds / 2] >= needed && ratios[rounds / 3] >= 1.0;
  }

  Contender* fastest_proven() {
    Contender* winner = nullptr;
    for (Contender& c : contenders_)
      if (c.row && (!winner || c.best < winner->best) && is_proven(c)) winner = &c;
    return winner;
  }

  // The fastest of several may be so by luck: it is run against torch's own path once more.
  const Contender* confirmed(const Contender& candidate) {
    Contender& again = contenders_[size_t(&candidate - contenders_.data())];
    for (Contender* c : {&torch(), &again}) {
      c->times.clear();
      c->best = never;
    }
    run_rounds({&torch(), &again});
    return is_proven(again) ? &again : nullptr;
  }

  Tuned tuned(const Contender& winner) const {
    Tuned found{"torch", "torch", "measured in this process", true, {}};
    if (winner.row) {
      found.name = winner.row->name;
      found.math = winner.row->algorithm->math;
    }
    for (const Contender& c : contenders_)
      found.measured.push_back({c.row ? label_of(*c.row) : "torch", c.best < never ? c.best / winner.best : 0.0});
    return found;
  }

  const Run& run_;
  const int32_t table_;
  Clock::time_point asked_ = Clock::now();
  std::vector<Contender> contenders_;  // torch's own path first
  double best_ = never;
};

std::mutex& measuring = fork_safe_mutex(false);  // held while torch and the kernels run: only ever tried, never waited for
thread_local bool here = false;                  // torch's own path may lead back, through another library's kernel
constexpr double total_budget = 120.0;           // seconds of this process
std::atomic<double> spent{0.0};

constexpr const char* kept_for_next_run =
    "measured for the next run: the processes of one run all choose by what the tuning file held when it began";

struct Here {
  Here() { here = true; }
  ~Here() { here = false; }
};
struct Spending {
  const Clock::time_point start = Clock::now();
  ~Spending() { spent = spent + since(start); }
};

}  // namespace

double seconds_of(const std::function<void()>& run) {
  const auto start = Clock::now();
  run();
  return since(start);
}

Decided measured(Policy& policy, const ConvCall& call, const Decided& guessed, Direction direction, int threads, const Run& run) {
  if (here || forks) return guessed;
  const std::unique_lock<std::mutex> mine(measuring, std::try_to_lock);
  if (!mine.owns_lock()) return guessed;
  const Here guard;
  std::string why;
  const TuningKey key = policy.tuning_key(call, direction), for_next_run{~key.table, key.direction, key.problem, key.permissions};
  if (!policy.tuned_for(call, direction, threads)) {  // another module may have had the same problem
    if (spent > total_budget)
      return policy.decide_again(call, direction, threads, "this process has spent its " + in_words(total_budget) + " seconds of measuring");
    const Permission said = permission(key.table);
    if (is_put_off(said)) return guessed;
    if (said == Permission::forked) why = "nothing is measured in a forked worker, and the tuning file does not have it";
    if (said == Permission::other_rank) why = "of several processes rank 0 alone measures, and the tuning file did not have it";
    if (said == Permission::for_next_run && tuned(for_next_run, threads, true)) why = kept_for_next_run;
    if (why.empty()) {
      const Spending spending;
      const auto result = Race(policy.candidates(call, direction), run, key.table).result();
      if (!result) return guessed;
      report(key, threads, *result);
      if (said == Permission::for_next_run) why = kept_for_next_run;
      learn(why.empty() ? key : for_next_run, threads, *result);
    }
  }
  return policy.decide_again(call, direction, threads, why);
}

}  // namespace msctx

// How long this process has measured.
MSCTX_API double msctx_measuring_seconds() { return msctx::spent; }
