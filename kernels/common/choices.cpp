// The log of choices.
#include "msctx/choices.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <unordered_map>

#include "msctx/api.h"
#include "msctx/json.h"
#include "msctx/process.h"

namespace msctx {
namespace {

std::mutex& lock = fork_safe_mutex();
struct Log {
  std::deque<std::unique_ptr<Choice>> entries;
  std::unordered_map<std::string, Choice*> by_text;
};
Log& log() {
  static Log* all = new Log;  // never destroyed: threads may still run convolutions while the process ends
  return *all;
}

// All that makes an entry itself, without its counts.
std::string identity(const Choice& c) {
  std::string json;
  member(json, "direction", c.direction);
  member(json, "asked", c.asked);
  member(json, "ran", c.ran);
  member(json, "provider", c.provider);
  member(json, "math", c.math);
  const ConvText& p = c.problem;
  member(json, "input", p.input);
  member(json, "weight", p.weight);
  member(json, "stride", p.stride);
  member(json, "padding", p.padding);
  member(json, "dilation", p.dilation);
  member(json, "output_padding", p.output_padding);
  member(json, "groups", p.groups);
  member(json, "transposed", p.transposed);
  member(json, "dtype", p.dtype);
  member(json, "layout", p.layout);
  member(json, "module", p.module);
  char number[40];
  std::snprintf(number, sizeof number, "\"error\":%.17g,", c.error);
  json += number;
  json += "\"workspace\":" + std::to_string(c.workspace) + ",\"reasons\":[";
  for (size_t i = 0; i < c.reasons.size(); i++) {
    if (i) json += ',';
    quote(json, c.reasons[i]);
  }
  return json + "]";
}

}  // namespace

Choice* record(std::unique_ptr<Choice> choice) {
  Log& all = log();
  std::string key = identity(*choice);
  const std::lock_guard<std::mutex> guard(lock);
  const auto [found, added] = all.by_text.try_emplace(std::move(key), choice.get());
  if (added) all.entries.push_back(std::move(choice));
  return found->second;
}

std::string choices_json(const int32_t* wanted, int count) {
  Log& all = log();
  const std::lock_guard<std::mutex> guard(lock);
  std::string json = "[";
  for (int i = 0; i < count; i++) {
    if (wanted[i] < 0 || size_t(wanted[i]) >= all.entries.size()) continue;
    const Choice& entry = *all.entries[size_t(wanted[i])];
    if (json.size() > 1) json += ',';
    json += '{' + identity(entry) + ",\"calls\":" + std::to_string(entry.calls.load(std::memory_order_relaxed)) +
            ",\"computed_again\":" + std::to_string(entry.computed_again.load(std::memory_order_relaxed)) + '}';
  }
  return json + ']';
}

}  // namespace msctx

// The entries of these numbers; to be freed.
MSCTX_API char* msctx_choices(const int32_t* wanted, int count) try {
  return strdup(msctx::choices_json(wanted, count).c_str());
} catch (const std::exception&) {
  return nullptr;  // no memory
}
// Of each entry the calls, and the weights kept and prepared for them, in the order in which they were first met: their numbers.
// Returns how many entries there are, of which at most `size` are written; -1: there was no memory.
MSCTX_API int msctx_counts(int64_t (*counts)[3], int size) try {
  msctx::Log& all = msctx::log();
  const std::lock_guard<std::mutex> guard(msctx::lock);
  for (int i = 0; i < size && i < int(all.entries.size()); i++) {
    const msctx::Choice& entry = *all.entries[i];
    int64_t* to = counts[i];
    for (const auto* count : {&entry.calls, &entry.weights_kept, &entry.weights_prepared}) *to++ = count->load(std::memory_order_relaxed);
  }
  return int(all.entries.size());
} catch (const std::exception&) {
  return -1;
}
MSCTX_API void msctx_free(char* text) { free(text); }
