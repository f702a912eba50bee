#include "glue/rows.h"

#include <cmath>
#include <cstdio>
#include <utility>

#include "msctx/json.h"

namespace msctx::glue {
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
