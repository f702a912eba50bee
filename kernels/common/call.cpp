// A call in words: what choices() shows and what rules are matched against.
#include "common/policy.h"
#include "msctx/process.h"

namespace msctx {

namespace {

std::string along_axes(const int64_t values[3], int dims) {
  const int64_t* v = values + 3 - dims;
  for (int i = 1; i < dims; i++)
    if (v[i] != v[0]) return joined(v, size_t(dims));
  return std::to_string(v[0]);
}

std::string shape(int64_t a, int64_t b, const int64_t extent[3], int dims) {
  return std::to_string(a) + "x" + std::to_string(b) + "x" + joined(extent + 3 - dims, size_t(dims));
}

std::string epilogue_of(const ConvCall& call) {
  const std::string activation = call.activation ? activation_names[call.activation] : "";
  std::string text;
  const auto then = [&](bool is_there, const std::string& word) {
    if (is_there && !word.empty()) text += (text.empty() ? "" : "+") + word;
  };
  then(call.has_scale, "scale");
  then(call.has_shift, "shift");
  if (call.adds_last) then(true, activation);
  then(call.has_other, "add");
  if (!call.adds_last) then(true, activation);
  return text;
}

}  // namespace

ConvText text_of(const ConvCall& call) {
  const ConvProblem& p = call.problem;
  ConvText text;
  text.dtype = name_of(p.dtype);
  text.epilogue = epilogue_of(call);
  if (call.module) text.module = call.module;
  if (call.rows) {
    const std::string batches = call.batches ? std::to_string(call.batches) + "x" : "";
    const int64_t depth = call.transposed ? p.k : p.c, columns = call.transposed ? p.c : p.k;
    text.input = batches + std::to_string(call.rows) + "x" + std::to_string(depth);
    text.weight = batches + std::to_string(depth) + "x" + std::to_string(columns);
    text.layout = {call.left_transposed ? 'T' : 'N', call.transposed ? 'N' : 'T'};
    return text;
  }
  text.input = call.transposed ? shape(p.n, p.k, p.out, p.dims) : shape(p.n, p.c, p.in, p.dims);
  text.weight = shape(p.k, group_c(p), p.window, p.dims);
  text.stride = along_axes(p.stride, p.dims);
  text.padding = along_axes(p.pad, p.dims);
  text.dilation = along_axes(p.dilation, p.dims);
  text.output_padding = along_axes(call.output_padding, p.dims);
  text.groups = std::to_string(p.groups);
  text.transposed = call.transposed ? "true" : "false";
  text.layout = call.channels_last ? "channels_last" : "channels_first";
  return text;
}

std::string filled(const char* reason, const ConvCall& call) {
  std::string text = reason;
  for (const auto& [name, values] : {std::pair("{stride}", call.problem.stride), std::pair("{dilation}", call.problem.dilation)})
    if (const size_t at = text.find(name); at != std::string::npos)
      text.replace(at, std::char_traits<char>::length(name), along_axes(values, call.problem.dims));
  return text;
}

std::string line_of(const ConvText& t) {
  std::string line = t.input + (t.weight.empty() ? "" : " * " + t.weight) + ", " + t.dtype;  // little is known of what is not ours
  if (t.transposed == "true") line += ", transposed";
  const struct {
    const char *words, *usual;
    const std::string& value;
  } rest[] = {
      {", stride ", "1", t.stride},
      {", padding ", "0", t.padding},
      {", dilation ", "1", t.dilation},
      {", output_padding ", "0", t.output_padding},
      {", groups ", "1", t.groups},
  };
  for (const auto& [words, usual, value] : rest)
    if (!value.empty() && value != usual) line += words + value;
  return line + ", " + t.layout + (t.epilogue.empty() ? "" : ", then " + t.epilogue);
}

}  // namespace msctx
