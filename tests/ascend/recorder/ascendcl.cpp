// libascendcl: devices, memory, streams, options. The memory of a device is the host's; a stream has done all that it is given.

#include <acl/acl.h>
#include <acl/acl_op_compiler.h>
#include <sys/mman.h>

#include <array>
#include <atomic>
#include <cstring>
#include <map>
#include <mutex>

#include "recorder.h"

namespace {

constexpr aclError no_memory = 207001, no_device = 107001, no_context = 107002;
constexpr int most_devices = 64;

int devices() { return std::stoi(recorder::setting("RECORDER_DEVICES", "2")); }
size_t memory() { return std::stoull(recorder::setting("RECORDER_MEMORY_MB", "65536")) << 20; }

thread_local int current = -1;
char contexts[most_devices];

std::mutex guard;
std::map<void*, std::pair<int, size_t>> blocks;
std::array<size_t, most_devices> used;

std::array<std::string, 32> compile_options;
std::array<int64_t, 16> system_options;
constexpr std::array<uint32_t, 2> all_cores = {24, 48};

const char* name(aclCompileOpt option) {
  static const char* names[] = {
      "ACL_PRECISION_MODE", "ACL_AICORE_NUM", "ACL_AUTO_TUNE_MODE", "ACL_OP_SELECT_IMPL_MODE", "ACL_OPTYPELIST_FOR_IMPLMODE",
      "ACL_OP_DEBUG_LEVEL", "ACL_DEBUG_DIR", "ACL_OP_COMPILER_CACHE_MODE", "ACL_OP_COMPILER_CACHE_DIR", "ACL_OP_PERFORMANCE_MODE",
      "ACL_OP_JIT_COMPILE", "ACL_OP_DETERMINISTIC", "ACL_CUSTOMIZE_DTYPES", "ACL_OP_PRECISION_MODE", "ACL_ALLOW_HF32",
      "ACL_PRECISION_MODE_V2", "ACL_OP_DEBUG_OPTION"};
  static_assert(sizeof names / sizeof *names == ACL_OP_DEBUG_OPTION + 1);
  return option <= ACL_OP_DEBUG_OPTION ? names[option] : "?";
}

// Of chips of the 910A class operators are compiled for their shapes unless told otherwise.
std::string compile_option(aclCompileOpt option) {
  const std::string& found = compile_options.at(option);
  if (option != ACL_OP_JIT_COMPILE || !found.empty()) return found;
  return recorder::setting("RECORDER_SOC", "").starts_with("Ascend910A") ? "enable" : "disable";
}

const char* name(aclSysParamOpt option) {
  static const char* names[] = {"ACL_OPT_DETERMINISTIC", "ACL_OPT_ENABLE_DEBUG_KERNEL", "ACL_OPT_STRONG_CONSISTENCY"};
  return option <= ACL_OPT_STRONG_CONSISTENCY ? names[option] : "?";
}

const char* name(aclrtMemcpyKind kind) {
  switch (kind) {
    case ACL_MEMCPY_HOST_TO_DEVICE: return "to device";
    case ACL_MEMCPY_DEVICE_TO_HOST: return "to host";
    default: return "on device";
  }
}

uint64_t op_microseconds = 0;

int device() { return current < 0 ? 0 : current; }

aclError take(const char* call, void** place, size_t size) {
  if (const int code = recorder::called(call, size)) return code;
  std::lock_guard hold(guard);
  if (used[device()] + size > memory()) return no_memory;
  *place = std::aligned_alloc(512, (size + 511 + 512) / 512 * 512);
  used[device()] += size;
  blocks[*place] = {device(), size};
  return ACL_SUCCESS;
}

void* thing() { return std::calloc(1, 256); }

}  // namespace

// The bodies of functions that only log their call, or only do one thing.
#define RECORDED(...) { CALLED(__VA_ARGS__); return ACL_SUCCESS; }
#define DONE(...) { __VA_ARGS__; return ACL_SUCCESS; }

extern "C" {

// --- life ----------------------------------------------------------------------------------------------------------------------

aclError aclInit(const char* path) RECORDED(path ? path : "null")

const char* aclrtGetSocName() {
  static std::string soc;
  soc = recorder::setting("RECORDER_SOC", "Ascend910B1");
  return soc.c_str();
}

aclError aclsysGetVersionStr(char*, char* version) DONE(std::strcpy(version, recorder::setting("RECORDER_CANN", "8.5.0").c_str()))

aclError aclsysGetCANNVersion(aclCANNPackageName, aclCANNPackageVersion* version) {
  std::memset(version, 0, sizeof *version);
  return aclsysGetVersionStr(nullptr, version->version);
}

const char* aclGetRecentErrMsg() { return "the recorder was told to fail"; }

// --- devices -------------------------------------------------------------------------------------------------------------------

aclError aclrtGetDeviceCount(uint32_t* count) DONE(*count = devices())

aclError aclrtGetDevice(int32_t* number) {
  if (current < 0) return no_context;
  *number = current;
  return ACL_SUCCESS;
}

aclError aclrtSetDevice(int32_t number) {
  CALLED(number);
  if (number < 0 || number >= devices()) return no_device;
  current = number;
  return ACL_SUCCESS;
}

aclError aclrtGetCurrentContext(aclrtContext* context) {
  if (current < 0) return no_context;
  *context = &contexts[current];
  return ACL_SUCCESS;
}

aclError aclrtSetCurrentContext(aclrtContext context) DONE(current = static_cast<char*>(context) - contexts)

aclError aclrtGetPrimaryCtxState(int32_t, uint32_t* flags, int32_t* active) {
  if (flags) *flags = 0;
  if (active) *active = 1;
  return ACL_SUCCESS;
}

aclError aclrtGetDeviceInfo(uint32_t, aclrtDevAttr attribute, int64_t* value) {
  constexpr int hbm = 301;
  *value = attribute == hbm ? static_cast<int64_t>(memory()) : attribute == 201 ? all_cores[1] : all_cores[0];
  return ACL_SUCCESS;
}

aclError aclGetDeviceCapability(uint32_t, aclDeviceInfo, int64_t* value) DONE(*value = all_cores[0])
aclError aclrtDeviceCanAccessPeer(int32_t* can, int32_t, int32_t) DONE(*can = 1)
aclError aclrtPeekAtLastError(aclrtLastErrLevel) { return ACL_SUCCESS; }
aclError aclrtGetLastError(aclrtLastErrLevel) { return ACL_SUCCESS; }

// --- memory --------------------------------------------------------------------------------------------------------------------

aclError aclrtGetMemInfo(aclrtMemAttr, size_t* free, size_t* total) {
  std::lock_guard hold(guard);
  *total = memory();
  *free = *total - used[device()];
  return ACL_SUCCESS;
}

aclError aclrtMalloc(void** place, size_t size, aclrtMemMallocPolicy) { return take(__func__, place, size); }
aclError aclrtMallocAlign32(void** place, size_t size, aclrtMemMallocPolicy) { return take(__func__, place, size); }

aclError aclrtFree(void* place) {
  std::lock_guard hold(guard);
  const auto [on, size] = blocks[place];
  recorder::log(__func__, size);
  used[on] -= size;
  blocks.erase(place);
  std::free(place);
  return ACL_SUCCESS;
}

aclError aclrtMallocHost(void** place, size_t size) DONE(*place = std::aligned_alloc(512, (size + 511) / 512 * 512))

aclError aclrtMemcpy(void* to, size_t, const void* from, size_t count, aclrtMemcpyKind kind) {
  CALLED(count, name(kind));
  std::memmove(to, from, count);
  return ACL_SUCCESS;
}

aclError aclrtMemcpyAsync(void* to, size_t, const void* from, size_t count, aclrtMemcpyKind kind, aclrtStream) {
  CALLED(count, name(kind));
  std::memmove(to, from, count);
  return ACL_SUCCESS;
}

aclError aclrtMemset(void* place, size_t, int32_t value, size_t count) DONE(std::memset(place, value, count))

aclError aclrtMemsetAsync(void* place, size_t room, int32_t value, size_t count, aclrtStream) {
  return aclrtMemset(place, room, value, count);
}

// Addresses without memory: a page is there once it is written to.
aclError aclrtReserveMemAddress(void** place, size_t size, size_t, void*, uint64_t) {
  CALLED(size);
  *place = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return *place == MAP_FAILED ? no_memory : ACL_SUCCESS;
}

aclError aclrtMallocPhysical(aclrtDrvMemHandle* handle, size_t size, const aclrtPhysicalMemProp*, uint64_t) {
  CALLED(size);
  std::lock_guard hold(guard);
  if (used[device()] + size > memory()) return no_memory;
  used[device()] += size;
  *handle = reinterpret_cast<aclrtDrvMemHandle>(thing());
  blocks[*handle] = {device(), size};
  return ACL_SUCCESS;
}

aclError aclrtFreePhysical(aclrtDrvMemHandle handle) { return aclrtFree(handle); }

// --- streams -------------------------------------------------------------------------------------------------------------------

aclError aclrtCreateStream(aclrtStream* stream) DONE(*stream = thing())

aclError aclrtCreateStreamWithConfig(aclrtStream* stream, uint32_t priority, uint32_t flags) {
  CALLED(priority, flags);
  *stream = thing();
  return ACL_SUCCESS;
}

aclError aclrtDestroyStreamForce(aclrtStream stream) DONE(std::free(stream))
aclError aclrtStreamGetId(aclrtStream, int32_t* number) DONE(*number = 1)
aclError aclrtStreamQuery(aclrtStream, aclrtStreamStatus* status) DONE(*status = ACL_STREAM_STATUS_COMPLETE)
aclError aclrtCreateEventExWithFlag(aclrtEvent* event, uint32_t) DONE(*event = thing())
aclError aclrtCreateEventWithFlag(aclrtEvent* event, uint32_t flag) { return aclrtCreateEventExWithFlag(event, flag); }

aclError aclrtQueryEventStatus(aclrtEvent, aclrtEventRecordedStatus* status) DONE(*status = ACL_EVENT_RECORDED_STATUS_COMPLETE)
aclError aclrtQueryEventWaitStatus(aclrtEvent, aclrtEventWaitStatus* status) DONE(*status = ACL_EVENT_WAIT_STATUS_COMPLETE)
aclError aclrtSynchronizeStream(aclrtStream) RECORDED()
aclError aclrtSynchronizeStreamWithTimeout(aclrtStream, int32_t ms) RECORDED(ms)
aclError aclrtSynchronizeDevice() RECORDED()
aclError aclrtSynchronizeDeviceWithTimeout(int32_t ms) RECORDED(ms)

// --- options -------------------------------------------------------------------------------------------------------------------

aclError aclSetCompileopt(aclCompileOpt option, const char* value) {
  CALLED(name(option), value);
  compile_options.at(option) = value;
  return ACL_SUCCESS;
}

size_t aclGetCompileoptSize(aclCompileOpt option) { return compile_option(option).size() + 1; }

aclError aclGetCompileopt(aclCompileOpt option, char* value, size_t room) DONE(std::strncpy(value, compile_option(option).c_str(), room))

aclError aclrtSetSysParamOpt(aclSysParamOpt option, int64_t value) {
  CALLED(name(option), value);
  system_options.at(option) = value;
  return ACL_SUCCESS;
}

aclError aclrtGetSysParamOpt(aclSysParamOpt option, int64_t* value) DONE(*value = system_options.at(option))
aclError aclrtCtxSetSysParamOpt(aclSysParamOpt option, int64_t value) RECORDED(name(option), value)
aclError aclrtSetOpExecuteTimeOut(uint32_t seconds) RECORDED(seconds)

aclError aclrtSetOpExecuteTimeOutV2(uint64_t microseconds, uint64_t* actual) {
  CALLED(microseconds);
  *actual = op_microseconds = microseconds;
  return ACL_SUCCESS;
}

aclError aclrtGetOpExecuteTimeout(uint32_t* milliseconds) DONE(*milliseconds = op_microseconds / 1000)
aclError aclrtSetOpWaitTimeout(uint32_t seconds) RECORDED(seconds)
aclError aclrtSetDeviceSatMode(aclrtFloatOverflowMode) { return ACL_SUCCESS; }
aclError aclrtSetStreamFailureMode(aclrtStream, uint64_t) { return ACL_SUCCESS; }
aclError aclrtSetStreamOverflowSwitch(aclrtStream, uint32_t) { return ACL_SUCCESS; }
aclError aclmdlSetDump(const char* path) RECORDED(path)

// --- operators that CANN compiles (aclop): their names are logged, and nothing is computed -------------------------------------

aclDataBuffer* aclCreateDataBuffer(void*, size_t) { return static_cast<aclDataBuffer*>(thing()); }
aclTensorDesc* aclCreateTensorDesc(aclDataType, int, const int64_t*, aclFormat) { return static_cast<aclTensorDesc*>(thing()); }
aclopAttr* aclopCreateAttr() { return static_cast<aclopAttr*>(thing()); }
aclGraphDumpOption* aclCreateGraphDumpOpt() { return static_cast<aclGraphDumpOption*>(thing()); }

aclError aclopCompileAndExecute(const char* type, int, const aclTensorDesc* const[], const aclDataBuffer* const[], int,
                                const aclTensorDesc* const[], aclDataBuffer* const[], const aclopAttr*, aclopEngineType,
                                aclopCompileType, const char*, aclrtStream) RECORDED(type)
aclError aclopCompileAndExecuteV2(const char* type, int, aclTensorDesc*[], aclDataBuffer*[], int, aclTensorDesc*[], aclDataBuffer*[],
                                  aclopAttr*, aclopEngineType, aclopCompileType, const char*, aclrtStream) RECORDED(type)
aclError aclGenGraphAndDumpForOp(const char* type, int, const aclTensorDesc* const[], const aclDataBuffer* const[], int,
                                 const aclTensorDesc* const[], aclDataBuffer* const[], const aclopAttr*, aclopEngineType,
                                 const char* path, const aclGraphDumpOption*) RECORDED(type, path)
}  // extern "C"
