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

void raise_to(std::atomic<int64_t>& to, int64_t value) {
  int64_t now = to.load(std::memory_order_relaxed);
  while (now < value && !to.compare_exchange_weak(now, value, std::memory_order_relaxed)) {
  }
}

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

void Conditions::note(bool held, int64_t books) {
  if (held) raise_to(held_, books);
  raise_to(compared_, books);
}

namespace {

std::atomic<int64_t> opened{0};
struct Log {
  std::unordered_map<std::string_view, std::shared_ptr<Logged>> known;  // by their JSON
  Book* const process = new Book;
  std::vector<Book*> open{process};  // in the order of opening
  int64_t numbers = 0, uses = 0;
};
Log& log = immortal<Log>();

// A quarter at once: to look for the oldest one costs as much as to look for many.
template <class Rows, class Of, class Gone>
void bound(Rows& rows, const Of& choice_of, const Gone& gone) {
  if (rows.size() <= Book::most_rows) return;
  std::vector<int64_t> used;
  for (const auto& row : rows) used.push_back(choice_of(row)->used);
  const auto quarter = used.begin() + std::ptrdiff_t(used.size() / 4);
  std::nth_element(used.begin(), quarter, used.end());
  for (auto row = rows.begin(); row != rows.end();) {
    const bool goes = choice_of(*row)->used < *quarter;
    if (goes) gone();
    row = goes ? rows.erase(row) : std::next(row);
  }
}

std::string json_of(const Choice& c) {
  std::string json;
  const std::pair<const char*, const std::string&> words[] = {
      {"direction", c.direction}, {"requested", c.asked}, {"ran", c.ran}, {"provider", c.provider}, {"math", c.math}};
  for (const auto& [name, word] : words) member(json, name, word);
  for (const auto& [name, field] : fields_of_text) member(json, name, c.problem.*field);
  char error[40];
  std::snprintf(error, sizeof error, "\"error\":%.17g,", c.error);
  number(json += error, "workspace", c.workspace);
  json += "\"reasons\":[";
  for (const std::string& reason : c.reasons) quote(json += &reason == c.reasons.data() ? "" : ",", reason);
  return json += "],";
}

void add(Counts& to, const Counts& counts) {
  to.calls += counts.calls;
  to.weights_kept += counts.weights_kept;
  to.weights_prepared += counts.weights_prepared;
}

}  // namespace

std::shared_ptr<Logged> record(const Choice& choice) {
  auto made = std::make_shared<Logged>(json_of(choice));
  const std::lock_guard<std::mutex> guard(lock);
  const auto [found, is_new] = log.known.try_emplace(made->json, made);
  if (!is_new) return found->second;
  made->number = ++log.numbers;
  made->used = ++log.uses;
  // one that a decision still has may be met anew as another one: see rows
  bound(log.known, [](const auto& row) { return row.second; }, [] {});
  return made;
}

int64_t books_opened() { return opened.load(std::memory_order_acquire); }

void count(const std::shared_ptr<Logged>& choice, const Counts& counts, bool computed_again, int64_t books) {
  const std::lock_guard<std::mutex> guard(lock);
  choice->used = ++log.uses;
  choice->computed_again += computed_again;
  const auto book = std::find_if(log.open.rbegin(), log.open.rend(), [&](const Book* one) { return one->opened_ <= books; });
  (*book)->own_.add(choice, counts);
}

void Book::Rows::add(const std::shared_ptr<Logged>& choice, const Counts& counts) {
  msctx::add(counted[choice], counts);
  bound(counted, [](const auto& row) { return row.first; }, [&] { dropped++; });
}

void Book::Rows::add(const Rows& others) {
  for (const auto& [choice, counts] : others.counted) add(choice, counts);
  dropped += others.dropped;
}

void Book::open() {
  const std::lock_guard<std::mutex> guard(lock);
  log.open.push_back(this);
  opened_ = opened.fetch_add(1, std::memory_order_acq_rel) + 1;
}

Book::Rows Book::latest() const {
  const std::vector<Book*>& open = log.open;
  Rows found;
  for (auto one = std::find(open.begin(), open.end(), this); one != open.end(); ++one) found.add((*one)->own_);
  return found;
}

void Book::close() {
  const std::lock_guard<std::mutex> guard(lock);
  const auto here = std::find(log.open.rbegin(), log.open.rend(), this);
  if (here == log.open.rend()) return;
  before_.add(latest());
  const auto place = std::prev(here.base());
  (*std::prev(place))->own_.add(own_);  // the process's is open before all others
  own_ = {};
  log.open.erase(place);
}

int Book::unmatched(int from) const {
  for (int i = from; i < int(rules_.size()); i++)
    if (rules_[size_t(i)]->failed_since(opened_)) return i;
  return -1;
}

Book::~Book() {
  try {
    close();
  } catch (const std::exception&) {  // no memory: what was counted is lost
    const std::lock_guard<std::mutex> guard(lock);
    std::erase(log.open, this);
  }
}

std::string Book::rows() const {
  const std::lock_guard<std::mutex> guard(lock);
  Rows all = latest();
  all.add(before_);
  std::unordered_map<std::string_view, std::pair<const Logged*, Counts>> merged;
  for (const auto& [choice, counts] : all.counted) {
    auto& [first, sum] = merged[choice->json];
    if (!first) first = choice.get();
    add(sum, counts);
  }
  std::vector<std::pair<const Logged*, Counts>> found;
  for (const auto& [_, row] : merged) found.push_back(row);
  std::ranges::sort(found, {}, [](const auto& row) { return row.first->number; });
  std::string json;
  number(json += '{', "dropped", all.dropped);
  json += "\"rows\":[";
  for (const auto& [choice, counts] : found) {
    json += (json.back() == '[' ? "{" : ",{") + choice->json;
    number(json, "calls", counts.calls);
    number(json, "weights_kept", counts.weights_kept);
    number(json, "weights_prepared", counts.weights_prepared);
    json += "\"computed_again\":" + std::to_string(choice->computed_again) + '}';
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
  return strdup((book ? book : log.process)->rows().c_str());
} catch (const std::exception&) {
  return nullptr;
}

}  // namespace msctx
