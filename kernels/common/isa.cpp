// Which instruction sets this processor has, and which one is in use. The best one, unless the caller chooses another.
#include "common/run.h"

#include <cstring>
#include <vector>

#ifdef MSCTX_WITH_X86
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace msctx {
namespace {

struct Isa {
  const ConvTable& (*table)();
  bool (*here)();
};

bool always() { return true; }

#ifdef MSCTX_WITH_X86
// __builtin_cpu_supports asks the operating system too: it must save the wide registers.
bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512cd");
}

// Linux gives a process its tile registers when it requests them; it does so once, for all of its threads.
bool has_tiles() {
  static const bool granted = [] {
    constexpr long request_permission = 0x1023, tile_data = 18;
    return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
  }();
  return granted;
}
bool has_bit(unsigned leaf, int word, int bit) {
  unsigned words[4] = {};
  return __get_cpuid_count(7, leaf, &words[0], &words[1], &words[2], &words[3]) && (words[word] >> bit & 1);
}
bool has_amx() {  // bf16, tiles, int8; and AVX-512's conversions to bfloat16
  return has_avx512() && has_bit(0, 3, 22) && has_bit(0, 3, 24) && has_bit(0, 3, 25) && has_bit(1, 0, 5) && has_tiles();
}
bool has_amx_fp16() { return has_amx() && has_bit(1, 0, 21); }

// The rows of AMX, then those of AVX-512 for all that they cannot take.
template <const ConvTable& (*tiles)()>
const ConvTable& with_others() {
  static const auto* rows = [] {
    auto* all = new std::vector<ConvRow>(tiles().rows, tiles().rows + tiles().count);
    all->insert(all->end(), avx512::table().rows, avx512::table().rows + avx512::table().count);
    return all;
  }();
  static const ConvTable table{tiles().isa, rows->data(), int(rows->size()), avx512::table().passes};
  return table;
}

const Isa isas[] = {
    {with_others<amx::table_of_float16>, has_amx_fp16},
    {with_others<amx::table>, has_amx},
    {avx512::table, has_avx512},
    {avx2::table, has_avx2},
    {generic::table, always},
#ifdef MSCTX_WITH_EMULATED
    {with_others<amx_emulated::table_of_float16>, has_avx512},
    {with_others<amx_emulated::table>, has_avx512},
#endif
};
#else
const Isa isas[] = {{generic::table, always}};
#endif

const ConvTable* current = msctx_table(msctx_isa(0));

}  // namespace

const ConvTable* msctx_table(const char* name) {
  if (name == nullptr) return current;
  for (const Isa& isa : isas)
    if (isa.here() && std::strcmp(isa.table().isa, name) == 0) return &isa.table();
  return nullptr;
}

const char* msctx_isa(int index) {
  for (const Isa& isa : isas)
    if (isa.here() && index-- == 0) return isa.table().isa;
  return nullptr;
}

const char* msctx_compiler() { return __VERSION__; }

const char* msctx_isa_in_use() { return current->isa; }

int msctx_use_isa(const char* name) {
  const ConvTable* wanted = msctx_table(name);
  if (wanted) current = wanted;
  return wanted != nullptr;
}

}  // namespace msctx
