// Which instruction sets this processor has, and which one is in use. The best one, unless the caller chooses another.
#include "msctx/api.h"

#include <cstring>

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
const Isa isas[] = {{avx512::table, has_avx512}, {avx2::table, has_avx2}, {generic::table, always}};
#else
const Isa isas[] = {{generic::table, always}};
#endif

const ConvTable* best() {
  for (const Isa& isa : isas)
    if (isa.here()) return &isa.table();
  return nullptr;
}

const ConvTable* current = best();

}  // namespace

const ConvTable& table_in_use() { return *current; }

const ConvTable* table_of(const char* name) {
  for (const Isa& isa : isas)
    if (isa.here() && std::strcmp(isa.table().isa, name) == 0) return &isa.table();
  return nullptr;
}

}  // namespace msctx

extern "C" {

const char* msctx_isa(int index) {
  for (const msctx::Isa& isa : msctx::isas)
    if (isa.here() && index-- == 0) return isa.table().isa;
  return nullptr;
}

const char* msctx_isa_in_use() { return msctx::current->isa; }

int msctx_use_isa(const char* name) {
  const msctx::ConvTable* wanted = msctx::table_of(name);
  if (wanted == nullptr) return 0;
  msctx::current = wanted;
  return 1;
}
}
