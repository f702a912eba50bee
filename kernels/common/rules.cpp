#include "msctx/rules.h"

#include <fnmatch.h>

#include <algorithm>
#include <mutex>
#include <unordered_map>

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

}  // namespace msctx
