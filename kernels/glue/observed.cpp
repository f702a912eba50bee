#include "glue/observed.h"

#include <ATen/Functions.h>

#include <cmath>
#include <filesystem>

#include "glue/tensors.h"

namespace msctx::glue {
namespace {

at::Tensor as_real(at::Tensor t) {
  t = t.resolve_conj().resolve_neg();  // a copy where memory holds other signs
  return t.is_complex() ? at::view_as_real(t) : t;
}

// All values once: expanded dimensions are one wide. `times`: how often each of them stands in the tensor.
at::Tensor once(at::Tensor t, int64_t& times) {
  times = 1;
  for (int64_t d = 0; d < t.dim(); d++)
    if (t.size(d) > 1 && t.stride(d) == 0) {
      times *= t.size(d);
      t = t.narrow(d, 0, 1);
    }
  t = as_real(t);
  return t.is_non_overlapping_and_dense() ? t : t.contiguous();
}

// An accelerator's is copied, which waits for the device.
at::Tensor on_host(const at::Tensor& t) { return t.device().is_cpu() ? t : t.cpu(); }

}  // namespace

static bool is_wrapped(const at::Tensor& t) {
  const auto keys = t.key_set();
  return keys.has(c10::DispatchKey::Python) || keys.has(c10::DispatchKey::FuncTorchBatched) ||
         keys.has(c10::DispatchKey::FuncTorchGradWrapper) || keys.has(c10::DispatchKey::Functionalize);
}

bool has_wrapped(at::ArrayRef<c10::IValue> values) {
  bool found = false;
  each_tensor(values, [&](const at::Tensor& t) { found |= is_wrapped(t); });
  return found;
}

const char* why_unreadable(const at::Tensor& t) {
  if (!t.defined()) return "undefined";
  if (is_wrapped(t)) return "wrapped";
  if (t.is_nested()) return "nested";
  if (t.is_meta()) return "meta";
  if (t.layout() != at::kStrided) return t.layout() == at::kMkldnn ? "mkldnn" : "sparse";
  if (t.is_quantized()) return "quantized";
  if (t._is_zerotensor()) return "zero";
  if (!t.has_storage()) return "without memory";
  int64_t end = t.storage_offset() + 1;  // a storage may have been released, or made smaller
  for (int64_t d = 0; d < t.dim(); d++) end += (t.size(d) - 1) * t.stride(d);
  const bool is_whole = t.numel() == 0 || (t.storage().data() != nullptr && end * int64_t(t.itemsize()) <= int64_t(t.storage().nbytes()));
  return is_whole ? nullptr : "without memory";
}

bool has_nonfinite(const at::Tensor& given) {
  if (!given.is_floating_point() && !given.is_complex()) return false;
  int64_t times;
  const at::Tensor t = once(on_host(given), times);
  const auto dtype = dtype_of(t);
  if (!dtype) return !at::isfinite(t.to(at::kFloat)).all().item<bool>();  // float8 and the like
  const auto* data = static_cast<const char*>(t.const_data_ptr());
  std::atomic<bool> found{false};
  parallel_for(threads_of_torch(), divide_up(t.numel(), statistics_piece), [&](int64_t i, int) {
    const int64_t start = i * statistics_piece;
    if (msctx_has_nonfinite(nullptr, *dtype, data + start * t.element_size(), smaller(statistics_piece, t.numel() - start))) found = true;
  });
  return found;
}

Statistics statistics_of(const at::Tensor& given) {
  int64_t times;
  at::Tensor t = once(on_host(given), times);
  if (!dtype_of(t)) t = t.to(at::kDouble);
  std::vector<Statistics> pieces(divide_up(t.numel(), statistics_piece));
  const Parallel threads = threads_of_torch();
  check(msctx_statistics(nullptr, *dtype_of(t), t.const_data_ptr(), t.numel(), pieces.data(), &threads));
  Statistics all;
  for (const Statistics& one : pieces) {
    all.least = std::min(all.least, one.least);
    all.largest = std::max(all.largest, one.largest);
    all.sum += one.sum * double(times);
    all.squares += one.squares * double(times);
    all.count += one.count * times;
    all.nan += one.nan * times;
    all.positive_inf += one.positive_inf * times;
    all.negative_inf += one.negative_inf * times;
    all.zero += one.zero * times;
    all.negative += one.negative * times;
  }
  return all;
}

std::optional<Statistics> known_of(const at::Tensor& t) try {
  return is_readable(t) ? std::optional(statistics_of(t)) : std::nullopt;
} catch (const std::exception&) {  // of a dtype that torch converts to no other
  return std::nullopt;
}

namespace {

// Of the values in logical order, their dtype and shape: the same for any strides.
uint64_t digest_of(const at::Tensor& given) {
  const Fingerprint found = print_of(as_real(on_host(given)).contiguous(), threads_of_torch());
  uint64_t shape = 0xcbf29ce484222325;
  for (const int64_t size : given.sizes()) shape = (shape ^ uint64_t(size)) * 0x100000001b3;
  return found.low ^ shape ^ uint64_t(given.scalar_type()) << 56;
}

// In NumPy's format; dtypes that it does not have (bfloat16, float8, complex32) as float32 or complex64. Throws where the file cannot be
// written whole.
void write_npy(const at::Tensor& given, const std::string& path) {
  at::Tensor t = on_host(given).resolve_conj().resolve_neg();
  const auto dtype = t.scalar_type();
  const bool is_numpys = at::isIntegralType(dtype, true) || dtype == at::kFloat || dtype == at::kDouble || dtype == at::kHalf ||
                         dtype == at::kComplexFloat || dtype == at::kComplexDouble;
  if (!is_numpys) t = t.to(t.is_complex() ? at::kComplexFloat : at::kFloat);
  const char kind = t.scalar_type() == at::kBool ? 'b' : t.is_complex() ? 'c' : t.is_floating_point() ? 'f' : t.is_signed() ? 'i' : 'u';
  const std::string type = (t.itemsize() == 1 ? "|" : "<") + (kind + std::to_string(t.itemsize()));
  t = t.contiguous();
  std::string shape;
  for (const int64_t size : t.sizes()) shape += std::to_string(size) + ",";
  std::string head = "{'descr': '" + type + "', 'fortran_order': False, 'shape': (" + shape + "), }";
  head.resize((10 + head.size()) / 64 * 64 + 64 - 10 - 1, ' ');
  head += '\n';
  const char before[] = {'\x93', 'N', 'U', 'M', 'P', 'Y', 1, 0, char(head.size() & 0xff), char(head.size() >> 8)};
  std::FILE* file = std::fopen(path.c_str(), "wbx");
  if (!file && errno == ENOENT) {
    std::error_code none;
    std::filesystem::create_directories(std::filesystem::path(path).parent_path(), none);
    file = std::fopen(path.c_str(), "wbx");
  }
  if (!file) throw std::runtime_error(std::strerror(errno));
  bool is_whole = std::fwrite(before, sizeof before, 1, file) == 1 && std::fwrite(head.data(), head.size(), 1, file) == 1;
  is_whole = is_whole && (t.nbytes() == 0 || std::fwrite(t.const_data_ptr(), t.nbytes(), 1, file) == 1);
  int error = errno;
  if (std::fclose(file) != 0) is_whole = false, error = errno;
  if (is_whole) return;
  std::remove(path.c_str());
  throw std::runtime_error(std::strerror(error));
}

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

// Why statistics are not read: torch converts the dtype to no other.
constexpr const char* unconvertible = "PyTorch converts this dtype to no other";

void take_statistics(Seen& found, const std::optional<Statistics>& known) {
  found.has_statistics = known.has_value();
  if (known) found.statistics = *known;
  else if (found.unread.empty()) found.unread = unconvertible;
}

void take_digest(Seen& found, const at::Tensor& t) try {
  found.digest = digest_of(t);
  found.has_digest = true;
} catch (const std::exception&) {
  found.unread = unconvertible;
}

void keep(Seen& found, const at::Tensor& t, const Reader& by, const std::string& file, std::string& problem) try {
  write_npy(t, by.files + "/" + file);
  found.file = file;
} catch (const c10::Error&) {
  found.unread = unconvertible;
} catch (const std::exception& error) {
  problem = error.what();
}

void write_json(std::string& json, const c10::IValue& value, int& tensors) {
  const auto number = [&](double v) {
    char text[40];
    std::snprintf(text, sizeof text, "%.17g", v);
    if (!std::strpbrk(text, ".en")) std::strcat(text, ".0");  // it stays a floating-point number
    if (std::isfinite(v)) json += text;
    else quote(json += "{\"float\":", text), json += '}';
  };
  const auto complex = [&](c10::complex<double> z) {  // as Python reads it
    char text[80];
    std::snprintf(text, sizeof text, "%.17g%+.17gj", z.real(), z.imag());
    quote(json += "{\"complex\":", text), json += '}';
  };
  const auto torch = [&](const std::string& name) { quote(json += "{\"torch\":", name), json += '}'; };
  if (value.isNone()) {
    json += "null";
  } else if (value.isTensor()) {
    json += value.toTensor().defined() ? "{\"tensor\":" + std::to_string(tensors++) + "}" : "null";
  } else if (value.isBool()) {
    json += value.toBool() ? "true" : "false";
  } else if (value.isInt()) {
    json += std::to_string(value.toInt());
  } else if (value.isDouble()) {
    number(value.toDouble());
  } else if (value.isString()) {
    quote(json, value.toStringRef());
  } else if (value.isDevice()) {
    torch("device:" + value.toDevice().str());
  } else if (value.isList()) {
    json += '[';
    bool is_first = true;
    for (const c10::IValue& one : value.toListRef()) {
      if (!is_first) json += ',';
      is_first = false;
      write_json(json, one, tensors);
    }
    json += ']';
  } else if (value.isScalar()) {
    const c10::Scalar scalar = value.toScalar();
    if (scalar.isComplex()) complex(scalar.toComplexDouble());
    else number(scalar.toDouble());
  } else {
    torch(value.tagKind());
  }
}

void write(std::string& json, const std::vector<Seen>& all) {
  json += '[';
  for (const Seen& one : all) {
    json += '{';
    members(json, "argument", one.argument, "shape", one.shape, "strides", one.strides, "requires_grad", one.requires_grad);
    if (one.is_written) members(json, "is_written", true);
    if (!one.unread.empty()) members(json, "unread", one.unread);
    members(json, "device", one.device, "file", one.file, "dtype", one.dtype);
    if (one.has_digest) members(json, "digest", one.digest);
    if (one.has_statistics) {
      const Statistics& s = one.statistics;
      const int64_t finite = s.count - s.nan - s.positive_inf - s.negative_inf;
      members(json, "min", s.least, "max", s.largest, "mean", finite ? s.sum / double(finite) : NAN, "l2", std::sqrt(s.squares));
      members(json, "count", s.count, "nan", s.nan, "positive_inf", s.positive_inf, "negative_inf", s.negative_inf);
      members(json, "zero", s.zero, "negative", s.negative);
    }
    json.back() = '}';
    json += ',';
  }
  if (json.back() == ',') json.pop_back();
  json += "],";
}

}  // namespace

std::vector<Seen> seen(
    const std::vector<c10::IValue>& values, Row& row, const char* what, const Reader& by,
    const std::vector<std::optional<Statistics>>* before) {
  const Operator& op = *row.op;
  const std::string stem = std::to_string(getpid()) + "-" + std::to_string(by.reader) + "-" + std::to_string(row.id) + "." + what + ".";
  std::vector<Seen> found;
  size_t written = 0;
  for (size_t i = 0; i < values.size(); i++) {
    const bool has_argument = what[0] == 'i' && i < op.arguments.size();
    const bool is_written = has_argument && op.is_written[i], is_result = has_argument && op.is_result[i];
    if (is_result && !by.errors) continue;
    for (const at::Tensor& t : tensors_in(values[i])) {
      Seen& one = found.emplace_back(described(t, has_argument ? op.arguments[i] : ""));
      one.is_written = is_written || is_result;
      if (is_written && before) {
        if (written < before->size()) take_statistics(one, (*before)[written++]);
        continue;
      }
      if (one.unread.empty() && by.digests) take_digest(one, t);
      if (one.unread.empty() && by.statistics) take_statistics(one, known_of(t));
      if (one.unread.empty() && by.tensors) keep(one, t, by, stem + std::to_string(found.size() - 1) + ".npy", row.problem);
    }
  }
  return found;
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

std::string json_of(const Row& row) {
  std::string json = "{";
  members(json, "id", row.id, "step", row.step, "maker", row.maker, "began", row.began, "took", row.took, "thread", row.thread);
  members(json, "operator", row.op->name, "overload", row.op->overload, "module", row.module, "direction", row.direction);
  members(json, "node", row.node, "line", row.line, "algorithm", row.algorithm, "shapes", row.shapes, "problem", row.problem);
  if (row.op->accumulates) members(json, "accumulates", true);
  json += "\"inputs\":";
  write(json, row.inputs);
  json += "\"outputs\":";
  write(json, row.outputs);
  json += "\"attributes\":" + (row.attributes.empty() ? "{}" : row.attributes);
  return json + "}";
}

}  // namespace msctx::glue
