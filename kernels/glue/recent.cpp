#include "glue/recent.h"

#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "glue/observed.h"
#include "msctx/api.h"
#include "msctx/json.h"
#include "msctx/process.h"

namespace msctx::glue {

// One of the last operators: plain memory, for the handler of a fatal signal to read.
struct Recent {
  int64_t id, step, began, took;  // took: -1 while it runs, -2 where it raised
  const Operator* op;
  const char *module, *direction;
  uint64_t thread;
  // Of the tensors that go in, as far as there is room; a text of them is made when it is read.
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

void copy(char* to, size_t room, const char* from) {
  std::strncpy(to, from, room - 1);
  to[room - 1] = 0;
  if (std::strlen(from) >= room) std::strcpy(to + room - 4, "...");  // there is more
}

// --- fatal signals: nothing here allocates, locks or formats by the C library ---

constexpr int fatal[] = {SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL};
struct sigaction handled_before[std::size(fatal)];
bool is_handling = false;
char fatal_file[PATH_MAX];
pid_t fatal_process = 0;  // a forked one has its parent's operators, and is not read

struct Digits {
  char room[24];
  const char* text = room + sizeof room - 1;
  explicit Digits(int64_t n) {
    char* at = room + sizeof room - 1;
    *at = 0;
    const bool is_negative = n < 0;
    for (uint64_t left = is_negative ? uint64_t(-n) : uint64_t(n); left || !*at; left /= 10) *--at = char('0' + left % 10);
    if (is_negative) *--at = '-';
    text = at;
  }
};

// What fits of a text into room on the stack.
class Words {
 public:
  Words(char* room, size_t size) : room_(room), size_(size) { room_[0] = 0; }
  void add(const char* text) {
    const size_t length = std::strlen(text), fits = std::min(length, size_ - 1 - used_);
    std::memcpy(room_ + used_, text, fits);
    room_[used_ += fits] = 0;
  }

 private:
  char* room_;
  size_t size_, used_ = 0;
};

// Such as Float[8x8] Long[8].
class Shapes {
 public:
  explicit Shapes(const Recent& of) {
    Words words(text, sizeof text);
    const int64_t* size = of.sizes;
    for (int i = 0; i < of.tensors && i < int(std::size(of.dims)); i++) {
      words.add(i ? " " : "");
      words.add(c10::toString(of.dtypes[i]));
      words.add("[");
      if (of.dims[i] < 0) words.add("nested");
      for (int d = 0; d < of.dims[i] && size < std::end(of.sizes); d++) {
        words.add(d ? "x" : "");
        words.add(Digits(*size++).text);
      }
      words.add("]");
    }
    if (of.has_more) words.add(of.tensors ? " ..." : "...");
  }
  char text[900];
};

struct Out {
  int file;
  bool is_whole = true;
  void text(const char* t) { some(t, std::strlen(t)); }
  void some(const char* t, size_t left) {
    while (left) {
      const ssize_t written = ::write(file, t, left);
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) return void(is_whole = false);
      t += written, left -= size_t(written);
    }
  }
  void number(int64_t n) { text(Digits(n).text); }
  void quoted(const char* t) {
    text("\"");
    for (size_t length; *t; t += length) {
      length = std::strcspn(t, "\"\\");
      if (length == 0) text("\\"), length = 1;
      some(t, length);
    }
    text("\"");
  }
};

void put_back_handlers() {
  for (size_t i = 0; i < std::size(fatal); i++) sigaction(fatal[i], &handled_before[i], nullptr);
}

template <class Use>
void for_recent(const Use& use) {
  const int64_t count = recent_count;
  for (int64_t i = count > most_recent ? count - most_recent : 0; i < count; i++)
    if (const Recent& one = recent[i % most_recent]; one.op) use(one);
}

// Under another name until it is whole.
template <class Write>
void write_fatal(const char* suffix, const Write& write) {
  char file[sizeof fatal_file + 40], part[sizeof file];
  std::strcat(std::strcpy(file, fatal_file), suffix);
  std::strcat(std::strcpy(part, file), ".part");
  Out out{::open(part, O_WRONLY | O_CREAT | O_EXCL, 0644)};
  if (out.file < 0) return;
  write(out);
  if (::close(out.file) == 0 && out.is_whole) std::rename(part, file);
  else ::unlink(part);
}

// As recorder.py writes it.
void write_text(Out& out, int number) {
  int64_t size = 0, place = 0;
  for_recent([&](const Recent&) { size++; });
  out.text("================== execution order ==================\nexecution_order size: ");
  out.number(size);
  out.text("\nfatal signal ");
  out.number(number);
  out.text(", process ");
  out.number(getpid());
  out.text(", thread ");
  out.number(gettid());
  out.text("\n");
  for_recent([&](const Recent& one) {
    const int64_t took = one.took;
    const Shapes shapes(one);
    out.number(place++);
    out.text(":\n");
    for (const char* text : {one.op->name.c_str(), one.module, one.direction, shapes.text, (const char*)one.algorithm}) {
      out.text("\t");
      out.text(*text ? text : "-");
      out.text("\n");
    }
    if (took == -1) out.text("\trunning");
    else if (took == -2) out.text("\traised");
    else out.text("\t"), out.number(took), out.text(" us");
    out.text("\n\tthread ");
    out.number(int64_t(one.thread));
    out.text("\n");
  });
}

// As recent_as_json().
void write_json(Out& out, int number) {
  out.text("{\"reason\": \"fatal signal ");
  out.number(number);
  out.text("\", \"operators\": [");
  const char* before = "\n";
  for_recent([&](const Recent& one) {
    const Shapes shapes(one);
    out.text(before);
    before = ",\n";
    const std::pair<const char*, int64_t> numbers[] = {
        {"{\"id\": ", one.id}, {", \"step\": ", one.step}, {", \"began\": ", one.began}, {", \"took\": ", one.took},
        {", \"thread\": ", int64_t(one.thread)}};
    for (const auto& [name, value] : numbers) out.text(name), out.number(value);
    const std::pair<const char*, const char*> texts[] = {
        {", \"operator\": ", one.op->name.c_str()}, {", \"module\": ", one.module}, {", \"direction\": ", one.direction},
        {", \"shapes\": ", shapes.text}, {", \"algorithm\": ", one.algorithm}};
    for (const auto& [name, value] : texts) out.text(name), out.quoted(value);
    out.text("}");
  });
  out.text("\n]}\n");
}

void on_fatal(int number) {
  put_back_handlers();
  if (getpid() == fatal_process) {
    write_fatal(".txt", [&](Out& out) { write_text(out, number); });
    write_fatal(".json", [&](Out& out) { write_json(out, number); });
  }
  raise(number);
}

}  // namespace

// Its dtype and sizes, the latter from `size` on. Returns where the next ones go.
static int64_t* describe(Recent& slot, int64_t* size, const at::Tensor& t) {
  if (!t.defined()) return size;
  const int64_t dims = t.is_nested() ? 0 : t.dim();
  if (slot.has_more |= slot.tensors == std::size(slot.dims) || dims > std::end(slot.sizes) - size; slot.has_more) return size;
  slot.dtypes[slot.tensors] = t.scalar_type();
  slot.dims[slot.tensors++] = t.is_nested() ? -1 : int8_t(dims);
  for (int64_t d = 0; d < dims; d++) *size++ = t.size(d);
  return size;
}

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
  copy(slot->algorithm, sizeof slot->algorithm, row.algorithm.c_str());
}

std::string recent_as_json() {
  std::string json = "[";
  for_recent([&](const Recent& one) {
    json += '{';
    const std::pair<const char*, int64_t> numbers[] = {
        {"id", one.id}, {"step", one.step}, {"began", one.began}, {"took", one.took}, {"thread", int64_t(one.thread)}};
    for (const auto& [name, value] : numbers) number(json, name, value);
    member(json, "operator", one.op->name);
    member(json, "module", one.module);
    member(json, "direction", one.direction);
    member(json, "shapes", Shapes(one).text);
    member(json, "algorithm", one.algorithm);
    json.back() = '}';
    json += ',';
  });
  if (json.back() == ',') json.pop_back();
  return json + "]";
}

}  // namespace msctx::glue

using namespace msctx;
using namespace msctx::glue;

// The file, but for its ending, into which a fatal signal writes the last operators before it ends the process as it would have; "": it does not.
MSCTX_API void msctx_record_fatal(const char* file) {
  const bool is_wanted = *file != 0;
  copy(fatal_file, sizeof fatal_file, file);
  fatal_process = is_wanted ? getpid() : 0;  // another handler may keep ours behind it
  if (is_wanted == is_handling) return;
  is_handling = is_wanted;
  if (!is_wanted) {
    for (size_t i = 0; i < std::size(fatal); i++) {
      struct sigaction now;
      if (sigaction(fatal[i], nullptr, &now) == 0 && now.sa_handler == on_fatal) sigaction(fatal[i], &handled_before[i], nullptr);
    }
    return;
  }
  stack_t stack = {};
  if (sigaltstack(nullptr, &stack) == 0 && (stack.ss_flags & SS_DISABLE)) {  // for a stack that has overflowed, in this thread
    static char room[1 << 16];
    stack = {room, 0, sizeof room};
    sigaltstack(&stack, nullptr);
  }
  struct sigaction ours = {};
  ours.sa_handler = on_fatal;
  ours.sa_flags = SA_ONSTACK | SA_NODEFER;
  for (size_t i = 0; i < std::size(fatal); i++) sigaction(fatal[i], &ours, &handled_before[i]);
}
