#include "glue/recent.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "msctx/json.h"

namespace msctx::glue {

// One of the last operators. Threads may read it while another one writes it, so that it has no pointers that anybody frees.
struct Recent {
  int64_t id, step, began, took;  // took: -1 while it runs, -2 where it raised
  const Operator* op;
  const char *module, *direction;
  uint64_t thread;
  // Of the tensors that go in, as far as there is room.
  int64_t sizes[24];
  at::ScalarType dtypes[16];
  int8_t dims[16];  // -1: nested
  int8_t tensors;
  bool has_more;
  char algorithm[40];
};

namespace {

constexpr int64_t most_recent = 1024;
Recent recent[most_recent];
std::atomic<int64_t> recent_count{0};

// Such as Float[8x8] Long[8].
std::string shapes_of(const Recent& of) {
  std::string text;
  const int64_t* size = of.sizes;
  for (int i = 0; i < of.tensors; i++) {
    text += std::string(i ? " " : "") + c10::toString(of.dtypes[i]) + "[" + (of.dims[i] < 0 ? "nested" : "");
    for (int d = 0; d < of.dims[i] && size < std::end(of.sizes); d++) text += (d ? "x" : "") + std::to_string(*size++);
    text += "]";
  }
  return of.has_more ? text + (of.tensors ? " ..." : "...") : text;
}

// Its dtype and sizes, the latter from `size` on. Returns where the next ones go.
int64_t* describe(Recent& slot, int64_t* size, const at::Tensor& t) {
  if (!t.defined()) return size;
  const int64_t dims = t.is_nested() ? 0 : t.dim();
  if (slot.has_more |= slot.tensors == std::size(slot.dims) || dims > std::end(slot.sizes) - size; slot.has_more) return size;
  slot.dtypes[slot.tensors] = t.scalar_type();
  slot.dims[slot.tensors++] = t.is_nested() ? -1 : int8_t(dims);
  for (int64_t d = 0; d < dims; d++) *size++ = t.size(d);
  return size;
}

}  // namespace

Recent* remember(const Row& row, at::ArrayRef<c10::IValue> arguments) {
  Recent& slot = recent[recent_count++ % most_recent];
  slot.id = row.id, slot.step = row.step, slot.began = row.began, slot.took = -1;
  slot.op = row.op, slot.module = row.module, slot.direction = row.direction, slot.thread = row.thread;
  slot.algorithm[0] = 0, slot.tensors = 0, slot.has_more = false;
  int64_t* size = slot.sizes;
  for (const c10::IValue& value : arguments) {
    if (value.isTensor()) size = describe(slot, size, value.toTensor());
    else if (value.isList())
      for (const c10::IValue& one : value.toListRef())
        if (one.isTensor()) size = describe(slot, size, one.toTensor());
  }
  return &slot;
}

void finish(Recent* slot, const Row& row, bool has_failed) {
  if (slot->id != row.id) return;  // another one has its place by now
  slot->took = has_failed ? -2 : row.took;
  std::strncpy(slot->algorithm, row.algorithm.c_str(), sizeof slot->algorithm - 1);
}

std::string recent_as_json() {
  std::string json = "[";
  const int64_t count = recent_count;
  for (int64_t i = std::max<int64_t>(0, count - most_recent); i < count; i++) {
    const Recent& one = recent[i % most_recent];
    if (!one.op) continue;
    json += '{';
    const std::pair<const char*, int64_t> numbers[] = {
        {"id", one.id}, {"step", one.step}, {"began", one.began}, {"took", one.took}, {"thread", int64_t(one.thread)}};
    for (const auto& [name, value] : numbers) number(json, name, value);
    member(json, "operator", one.op->name);
    member(json, "module", one.module);
    member(json, "direction", one.direction);
    member(json, "shapes", shapes_of(one));
    member(json, "algorithm", one.algorithm);
    json.back() = '}';
    json += ',';
  }
  if (json.back() == ',') json.pop_back();
  return json + "]";
}

}  // namespace msctx::glue
