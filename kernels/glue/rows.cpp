#include "glue/rows.h"

#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <exception>
#include <utility>

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
      if (!one.unread.empty()) continue;
      try {
        Statistics read;
        if (reading.digests) one.digest = digest_of(t, reading.statistics ? &read : nullptr), one.has_digest = true;
        else if (reading.statistics) read = statistics_of(t);
        if (reading.statistics) take_statistics(one, read);
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

namespace {

void write(std::string& json, const std::vector<Seen>& all) {
  const auto real = [&](const char* name, double v) {
    char text[64];
    std::snprintf(text, sizeof text, std::isfinite(v) ? "\"%s\":%.17g," : "\"%s\":null,", name, v);
    json += text;
  };
  json += '[';
  for (const Seen& one : all) {
    json += '{';
    member(json, "argument", one.argument);
    member(json, "shape", one.shape);
    member(json, "strides", one.strides);
    flag(json, "requires_grad", one.requires_grad);
    if (one.is_written) flag(json, "is_written", true);
    if (!one.unread.empty()) member(json, "unread", one.unread);
    member(json, "device", one.device);
    member(json, "file", one.file);
    if (one.has_digest) json += "\"digest\":" + std::to_string(one.digest) + ",";
    if (one.has_statistics) {
      const Statistics& s = one.statistics;
      const int64_t finite = s.count - s.nan - s.positive_inf - s.negative_inf;
      real("min", s.least);
      real("max", s.largest);
      real("mean", finite ? s.sum / double(finite) : NAN);
      real("l2", std::sqrt(s.squares));
      const std::pair<const char*, int64_t> counts[] = {{"count", s.count}, {"nan", s.nan}, {"positive_inf", s.positive_inf},
                                                        {"negative_inf", s.negative_inf}, {"zero", s.zero}, {"negative", s.negative}};
      for (const auto& [name, count] : counts) number(json, name, count);
    }
    member(json, "dtype", one.dtype);
    json.back() = '}';
    json += ',';
  }
  if (json.back() == ',') json.pop_back();
  json += "],";
}

std::string json_of(const Row& row) {
  std::string json = "{";
  const std::pair<const char*, int64_t> numbers[] = {{"id", row.id}, {"step", row.step}, {"maker", row.maker},
                                                     {"began", row.began}, {"took", row.took}, {"thread", int64_t(row.thread)}};
  for (const auto& [name, value] : numbers) number(json, name, value);
  member(json, "operator", row.op->name);
  member(json, "overload", row.op->overload);
  member(json, "module", row.module);
  member(json, "direction", row.direction);
  member(json, "node", row.node);
  member(json, "line", row.line);
  member(json, "algorithm", row.algorithm);
  member(json, "problem", row.problem);
  if (row.op->accumulates) flag(json, "accumulates", true);
  json += "\"inputs\":";
  write(json, row.inputs);
  json += "\"outputs\":";
  write(json, row.outputs);
  json += "\"attributes\":" + (row.attributes.empty() ? "{}" : row.attributes);
  return json + "}";
}

}  // namespace

std::string json_of(const std::deque<Row>& all) {
  std::string json = "[";
  for (const Row& row : all) json += json_of(row) + ",";
  if (json.back() == ',') json.pop_back();
  return json + "]";
}

}  // namespace msctx::glue
