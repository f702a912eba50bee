#include "glue/seen.h"

#include <unistd.h>

#include <exception>

#include "glue/observed.h"
#include "glue/tensors.h"
#include "msctx/json.h"

namespace msctx::glue {
namespace {

Seen described(const at::Tensor& t, const std::string& argument) {
  Seen found;
  found.argument = argument;
  found.dtype = c10::toString(t.scalar_type());
  if (!t.is_nested()) found.shape = joined(t.sizes());
  if (!t.is_nested() && t.layout() == at::kStrided) found.strides = joined(t.strides());
  found.requires_grad = t.requires_grad();
  found.device = t.device().str();
  if (const char* why = why_unreadable(t)) found.unread = why;
  return found;
}

void keep(Seen& found, const at::Tensor& t, const Reading& reading, const std::string& file, std::string& problem) try {
  write_npy(t, *reading.folder + "/" + file, reading.keeps_bits);
  found.file = file;
} catch (const c10::Error&) {
  found.unread = unconvertible;
} catch (const std::exception& error) {
  problem = error.what();
}

void take_statistics(Seen& found, const std::optional<Statistics>& known) {
  found.has_statistics = known.has_value();
  if (known) found.statistics = *known;
  else if (found.unread.empty()) found.unread = unconvertible;
}

void take_digest(Seen& found, const at::Tensor& t) try {
  found.digest = digest_of(t);
  found.has_digest = true;
} catch (const std::exception&) {
}

}  // namespace

std::vector<Seen> seen(
    const std::vector<c10::IValue>& values, const Row& row, const char* what, const Reading& reading, std::string& problem,
    const std::vector<std::optional<Statistics>>* before) {
  const Operator& op = *row.op;
  std::vector<Seen> found;
  const bool are_inputs = what[0] == 'i';
  size_t written = 0;
  for (size_t i = 0; i < values.size(); i++) {
    const bool has_argument = are_inputs && i < op.arguments.size(), is_written = has_argument && op.is_written[i];
    if (has_argument && op.is_result[i] && !reading.of_results) continue;
    std::vector<at::Tensor> tensors;
    tensors_in(values[i], tensors);
    for (const at::Tensor& t : tensors) {
      found.push_back(described(t, has_argument ? op.arguments[i] : ""));
      Seen& one = found.back();
      one.is_written = is_written || (has_argument && op.is_result[i]);
      if (is_written && before) {
        if (written < before->size()) take_statistics(one, (*before)[written++]);
        continue;
      }
      if (reading.of_any_layout) take_statistics(one, known_of(t));
      if (!one.unread.empty()) continue;
      try {
        Statistics read;
        const bool wants_statistics = reading.statistics && !reading.of_any_layout;
        if (reading.digests) one.digest = digest_of(t, wants_statistics ? &read : nullptr), one.has_digest = true;
        else if (wants_statistics) read = statistics_of(t);
        if (wants_statistics) take_statistics(one, read);
      } catch (const std::exception&) {
        take_statistics(one, std::nullopt);
        if (reading.digests && reading.statistics) take_digest(one, t);
        continue;
      }
      if (!reading.folder) continue;
      const std::string slot = std::string(".") + what + "." + std::to_string(found.size() - 1) + ".npy";
      keep(one, t, reading, stem_of_files(row, reading.reader) + slot, problem);
    }
  }
  return found;
}

std::string stem_of_files(const Row& row, int64_t reader) {
  return std::to_string(getpid()) + "-" + std::to_string(reader) + "-" + std::to_string(row.id);
}

std::string attributes_of(const std::vector<c10::IValue>& values, const Operator& op) {
  std::string json = "{";
  int tensors = 0;
  for (size_t i = 0; i < values.size(); i++) {
    if (i) json += ',';
    quote(json, i < op.arguments.size() ? op.arguments[i] : std::to_string(i));
    json += ':';
    write_json(json, values[i], tensors);
  }
  return json + "}";
}

}  // namespace msctx::glue
