// Where rules hold, the log of choices, and the books in which their calls are counted.
#include "common/policy.h"

#include <fnmatch.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "common/run.h"
#include "msctx/process.h"

namespace msctx {
namespace {

std::mutex& lock = fork_safe_mutex();
auto& known = immortal<std::unordered_map<std::string, std::weak_ptr<Conditions>>>();

}  // namespace

std::shared_ptr<Conditions> Conditions::of(const Json& rule) {
  auto made = std::make_shared<Conditions>();
  std::string text;
  for (const auto& [_, condition] : rule["conditions"].members) {
    const auto& [field, pattern] = made->all_.emplace_back(condition.at(0).text, condition.at(1).text);
    text += field + '=' + pattern + '\n';
  }
  const std::lock_guard<std::mutex> guard(lock);
  if (const auto found = known.find(text); found != known.end())
    if (auto same = found->second.lock()) return same;
  std::erase_if(known, [](const auto& one) { return one.second.expired(); });
  known[text] = made;
  return made;
}

bool Conditions::hold_for(const ConvText& t, bool any_module) const {
  const auto fits = [](const std::string& value, const std::string& pattern) {
    return !value.empty() && fnmatch(pattern.c_str(), value.c_str(), 0) == 0;
  };
  for (const auto& [name, pattern] : all_) {
    if (any_module && name == "module") continue;
    if (name == "dims" && !fits(std::to_string(std::ranges::count(t.weight, 'x') - 1), pattern)) return false;
    for (const auto& [known, field] : fields_of_text)
      if (name == known && !fits(t.*field, pattern)) return false;
  }
  return true;
}

namespace {

struct Log : Book::Rows {
  int64_t numbers = 0, uses = 0;
  std::vector<Book*> open;
  std::atomic<int64_t> opened{0};
};
Log& log = immortal<Log>();
const Book& of_process = immortal<Book>();

std::string json_of(const Choice& c) {
  std::string json;
  members(json, "direction", c.direction, "requested", c.asked, "ran", c.ran, "provider", c.provider, "math", c.math);
  for (const auto& [name, field] : fields_of_text) members(json, name, c.problem.*field);
  members(json, "error", c.error, "workspace", c.workspace);
  json += "\"reasons\":[";
  for (const std::string& reason : c.reasons) quote(json += &reason == c.reasons.data() ? "" : ",", reason);
  return json += "],";
}

}  // namespace

std::shared_ptr<Logged> record(const Choice& choice) {
  auto made = std::make_shared<Logged>(json_of(choice));
  const std::lock_guard<std::mutex> guard(lock);
  const auto [found, is_new] = log.counted.try_emplace(made->json, made, Counts{});
  if (!is_new) return found->second.choice;
  made->number = ++log.numbers;
  made->used = ++log.uses;
  log.bound();
  return made;
}

// A quarter goes at once: to look for the oldest one costs as much as to look for many.
void Book::Rows::bound() {
  constexpr size_t most_rows = 4096;
  if (counted.size() <= most_rows) return;
  std::vector<int64_t> used;
  for (const auto& [_, row] : counted) used.push_back(row.choice->used);
  const auto quarter = used.begin() + std::ptrdiff_t(used.size() / 4);
  std::nth_element(used.begin(), quarter, used.end());
  dropped += int64_t(std::erase_if(counted, [&](const auto& one) { return one.second.choice->used < *quarter; }));
}

void Counts::add(const Counts& more, int64_t times) {
  calls += times * more.calls;
  weights_kept += times * more.weights_kept;
  weights_prepared += times * more.weights_prepared;
}

int64_t books_opened() { return log.opened; }

void count(const std::shared_ptr<Logged>& choice, const Counts& counts, bool computed_again, int64_t books) {
  const std::lock_guard<std::mutex> guard(lock);
  const auto [found, is_new] = log.counted.try_emplace(choice->json, choice, Counts{});
  auto& [row, sum] = found->second;
  if (is_new) row->number = ++log.numbers;  // it had been dropped
  row->used = ++log.uses;
  row->computed_again += computed_again;
  sum.add(counts);
  for (Book* book : log.open)
    if (book->opened_ > books) book->at_opening_.emplace_back(row->number, counts);
}

void Book::open() {
  const std::lock_guard<std::mutex> guard(lock);
  at_opening_.clear(), rules_at_opening_.clear();
  for (const auto& [_, row] : log.counted) at_opening_.emplace_back(row.choice->number, row.counts);
  for (const auto& rule : rules_) rules_at_opening_.emplace_back(rule->compared, rule->held);
  dropped_at_opening_ = log.dropped;
  is_open_ = true;
  log.open.push_back(this);
  opened_ = ++log.opened;
}

void Book::add_latest(Rows& to) const {
  if (!is_open_) return;
  std::unordered_map<int64_t, Counts> before;
  for (const auto& [number, counts] : at_opening_) before[number].add(counts);
  for (const auto& [json, row] : log.counted) {
    Counts more = row.counts;
    more.add(before[row.choice->number], -1);
    if (more.calls) to.counted.try_emplace(json, row.choice, Counts{}).first->second.counts.add(more);
  }
  to.dropped += log.dropped - dropped_at_opening_;
  to.bound();
}

void Book::close() {
  const std::lock_guard<std::mutex> guard(lock);
  add_latest(before_);
  is_open_ = false;
  std::erase(log.open, this);
}

Book::~Book() {
  const std::lock_guard<std::mutex> guard(lock);
  std::erase(log.open, this);
}

int Book::unmatched(int from) const {
  for (size_t i = size_t(from); i < rules_at_opening_.size(); i++)
    if (rules_[i]->compared > rules_at_opening_[i].first && rules_[i]->held == rules_at_opening_[i].second) return int(i);
  return -1;
}

std::string Book::rows() const {
  const std::lock_guard<std::mutex> guard(lock);
  Rows all = before_;
  add_latest(all);
  std::vector<std::pair<const Logged*, Counts>> found;
  for (const auto& [_, row] : all.counted) found.emplace_back(row.choice.get(), row.counts);
  std::ranges::sort(found, {}, [](const auto& row) { return row.first->number; });
  std::string json;
  members(json += '{', "dropped", all.dropped);
  json += "\"rows\":[";
  for (const auto& [choice, counts] : found) {
    json += (json.back() == '[' ? "{" : ",{") + choice->json;
    members(json, "calls", counts.calls, "weights_kept", counts.weights_kept, "weights_prepared", counts.weights_prepared);
    members(json, "computed_again", choice->computed_again);
    json.back() = '}';
  }
  return json += "]}";
}

Book* msctx_book_new(const char* rules) try {
  std::vector<std::shared_ptr<Conditions>> found;
  for (const auto& [_, rule] : Json::of(rules).members) found.push_back(Conditions::of(rule));
  return new Book(std::move(found));
} catch (const std::exception&) {
  return nullptr;
}

void msctx_book_delete(Book* book) { delete book; }

int msctx_book_open(Book* book) {
  return done([&] { book->open(); });
}

int msctx_book_close(Book* book) {
  return done([&] { book->close(); });
}

int msctx_book_unmatched(const Book* book, int from) { return book->unmatched(from); }

char* msctx_book_rows(const Book* book) try {
  return strdup((book ? *book : of_process).rows().c_str());
} catch (const std::exception&) {
  return nullptr;
}

}  // namespace msctx
