// Where rules hold, the log of choices, and the books in which their calls are counted.
#include "common/policy.h"

#include <fnmatch.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>

#include "common/run.h"
#include "msctx/process.h"

namespace msctx {
namespace {

std::mutex& lock = fork_safe_mutex();

}  // namespace

Conditions::Conditions(const Json& rule) {
  std::string text;
  for (const auto& [_, condition] : rule["conditions"].members) {
    const auto& [field, pattern] = all_.emplace_back(condition.at(0).text, condition.at(1).text);
    text += field + '=' + pattern + '\n';
  }
  static auto& all = immortal<std::map<std::string, Met>>();
  const std::lock_guard<std::mutex> guard(lock);
  met_ = &all[text];
}

bool Conditions::hold_for(const ConvText& t) const {
  const auto fits = [](const std::string& value, const std::string& pattern) {
    return !value.empty() && fnmatch(pattern.c_str(), value.c_str(), 0) == 0;
  };
  for (const auto& [name, pattern] : all_) {
    if (name == "dims" && !fits(std::to_string(std::ranges::count(t.weight, 'x') - 1), pattern)) return false;
    for (const auto& [known, field] : fields_of_text)
      if (name == known && !fits(t.*field, pattern)) return false;
  }
  return true;
}

namespace {

struct Log {
  int64_t uses = 0;
  Book of_process;
  std::vector<Book*> open{&of_process};
  std::atomic<int64_t> opened{0};
};
Log& log = immortal<Log>();

}  // namespace

Logged logged(const Choice& c) {
  std::string json;
  members(json, "direction", std::string(name_of(c.direction)), "requested", c.requested, "ran", c.ran, "provider", c.provider, "math", c.math);
  for (const auto& [name, field] : fields_of_text) members(json, name, c.problem.*field);
  members(json, "error", c.error, "workspace", c.workspace);
  json += "\"reasons\":[";
  for (const std::string& reason : c.reasons) quote(json += &reason == c.reasons.data() ? "" : ",", reason);
  return std::make_shared<const std::string>(json + "],");
}

int64_t books_opened() { return log.opened; }

void count(const Logged& choice, const Counts& more, int64_t books) {
  constexpr size_t most_rows = 4096;
  const std::lock_guard<std::mutex> guard(lock);
  log.uses++;
  for (Book* book : log.open) {
    if (book->opened_ > books) continue;
    Book::Row& row = book->counted_.try_emplace(*choice, choice, log.uses).first->second;
    row.used = log.uses;
    Counts& sum = row.counts;
    sum.calls += more.calls, sum.computed_again += more.computed_again;
    sum.weights_kept += more.weights_kept, sum.weights_prepared += more.weights_prepared;
    if (book->counted_.size() <= most_rows) continue;
    // A quarter goes at once: to look for the oldest one costs as much as to look for many.
    std::vector<int64_t> used;
    for (const auto& [_, one] : book->counted_) used.push_back(one.used);
    std::ranges::nth_element(used, used.begin() + most_rows / 4);
    book->dropped_ += int64_t(std::erase_if(book->counted_, [&](const auto& one) { return one.second.used < used[most_rows / 4]; }));
  }
}

void Book::open() {
  const std::lock_guard<std::mutex> guard(lock);
  rules_at_opening_.clear();
  for (const auto& rule : rules_) rules_at_opening_.emplace_back(rule.met().compared, rule.met().held);
  log.open.push_back(this);
  opened_ = ++log.opened;
}

void Book::close() {
  const std::lock_guard<std::mutex> guard(lock);
  std::erase(log.open, this);
}

int Book::unmatched(int from) const {
  for (size_t i = size_t(from); i < rules_at_opening_.size(); i++)
    if (rules_[i].met().compared > rules_at_opening_[i].first && rules_[i].met().held == rules_at_opening_[i].second) return int(i);
  return -1;
}

std::string Book::rows() const {
  const std::lock_guard<std::mutex> guard(lock);
  std::vector<const Row*> all;
  for (const auto& [_, row] : counted_) all.push_back(&row);
  std::ranges::sort(all, {}, &Row::met);
  std::string json;
  members(json += '{', "dropped", dropped_);
  json += "\"rows\":[";
  for (const Row* row : all) {
    json += (json.back() == '[' ? "{" : ",{") + *row->choice;
    const Counts& c = row->counts;
    members(json, "calls", c.calls, "weights_kept", c.weights_kept, "weights_prepared", c.weights_prepared, "computed_again", c.computed_again);
    json.back() = '}';
  }
  return json += "]}";
}

Book* msctx_book_new(const char* rules) try {
  std::vector<Conditions> found;
  for (const auto& [_, rule] : Json::of(rules).members) found.emplace_back(rule);
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
  return strdup((book ? *book : log.of_process).rows().c_str());
} catch (const std::exception&) {
  return nullptr;
}

}  // namespace msctx
