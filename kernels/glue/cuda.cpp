// What all convolutions of CUDA tensors have in common, whoever computes them.
#include "glue/cuda.h"

#include <ATen/ops/zeros.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>

#include <algorithm>
#include <map>
#include <set>

#include "glue/hook.h"
#include "glue/tensors.h"
#include "msctx/process.h"

namespace msctx::glue {
namespace {

std::mutex& cuda_lock = fork_safe_mutex();
thread_local const ConvCall* in_question = nullptr;
thread_local int64_t asking_policy = 0;
int (*ask_capturing)(void* stream, int* status) = nullptr;  // cudaStreamIsCapturing; where there is none nothing can be recorded

c10::Device device_of(int index) {
  return {devices[int(Place::cuda)], c10::DeviceIndex(index)};
}
c10::Stream current_stream(int device) {
  const c10::Device where = device_of(device);
  return c10::impl::VirtualGuardImpl(where.type()).getStream(where);
}

// Why an algorithm cannot run a problem though it had reported that it could, by both, the Op and the policy (0: any).
auto& failures = immortal<std::map<std::string, const char*>>();
std::string failure_key(const ConvAlgorithm& algorithm, const ConvProblem& p, Op op, int64_t policy) {
  return key_of(p, *in_question) + std::to_string(reinterpret_cast<uintptr_t>(&algorithm)) + char(op) + std::to_string(policy);
}

void remember(const ConvAlgorithm& algorithm, const ConvProblem& p, Op op, const CudaFailed& failed) {
  constexpr size_t most = 4096;
  const char* why = permanent(failed.what());
  const std::lock_guard<std::mutex> guard(cuda_lock);
  if (failures.size() >= most) failures.clear();
  failures[failure_key(algorithm, p, op, failed.is_for_good ? 0 : asking_policy)] = why;
}

}  // namespace

const ConvTable& cuda_table() {
  static const auto* rows = [] {
    auto* all = new std::vector<ConvRow>(cudnn_rows());
    const std::vector<ConvRow> ours = cuda_depthwise_rows();
    all->insert(all->end(), ours.begin(), ours.end());
    return all;
  }();
  static const ConvTable table{.isa = "cuda", .rows = rows->data(), .count = int(rows->size()), .is_computed_again = false};
  return table;
}

CudaCall::CudaCall(const ConvCall* call, int64_t policy) : call_before_(in_question), policy_before_(asking_policy) {
  if (!call) return;
  in_question = call;
  asking_policy = policy;
  on_.reset_device(device_of(call->device));
}
CudaCall::~CudaCall() {
  in_question = call_before_;
  asking_policy = policy_before_;
}
const ConvCall& call_in_question() { return *in_question; }

std::string key_of(const ConvProblem& p, const ConvCall& call) {
  std::string key(reinterpret_cast<const char*>(&p), sizeof p);
  return (key += char(call.channels_last)).append(reinterpret_cast<const char*>(&call.device), sizeof call.device);
}

const char* permanent(const std::string& text) {
  static auto& all = immortal<std::set<std::string>>();
  const std::lock_guard<std::mutex> guard(cuda_lock);
  return all.insert(text).first->c_str();
}

void add_failure(const ConvAlgorithm& algorithm, const ConvProblem& p, Op op, Reasons& found) {
  const std::lock_guard<std::mutex> guard(cuda_lock);
  for (const int64_t policy : {int64_t(0), asking_policy})
    if (const auto failed = failures.find(failure_key(algorithm, p, op, policy)); failed != failures.end())
      return found.add(failed->second);
}

at::MemoryFormat cuda_format(const at::Tensor& input, const at::Tensor& weight) {
  if (input.scalar_type() == at::kDouble || weight.scalar_type() == at::kDouble) return at::MemoryFormat::Contiguous;
  const auto is = [&](at::MemoryFormat format) {
    return input.suggest_memory_format() == format || weight.suggest_memory_format() == format;
  };
  if (input.dim() == 4 && is(at::MemoryFormat::ChannelsLast)) return at::MemoryFormat::ChannelsLast;
  if (input.dim() == 5 && is(at::MemoryFormat::ChannelsLast3d)) return at::MemoryFormat::ChannelsLast3d;
  return at::MemoryFormat::Contiguous;
}

at::Tensor run_on_cuda(
    const ConvRow& row, const ConvCall& call, int64_t policy, const at::Tensor& first, const at::Tensor& second) {
  const ConvProblem& p = call.problem;
  const Op op = op_of(row.direction, call.transposed);
  const CudaCall about(&call, policy);
  const auto last = p.dims == 3 ? at::MemoryFormat::ChannelsLast3d : at::MemoryFormat::ChannelsLast;
  const auto format = call.channels_last ? last : at::MemoryFormat::Contiguous;
  const auto sizes = result_shape(call, row.direction);
  if (is_empty(p)) return at::zeros(sizes, first.options()).contiguous(format);
  const at::Tensor a = first.contiguous(format), b = second.contiguous(format);
  at::Tensor result = at::empty(sizes, first.options(), format);
  try {
    const size_t bytes = row.algorithm->workspace(p, op, 1);
    c10::DataPtr memory;  // of the allocator, which at::empty would fill under deterministic=ON
    if (bytes) memory = c10::GetAllocator(first.device().type())->allocate(bytes);
    const ConvTensors t = tensors_of(op, call.transposed, a.data_ptr(), b.data_ptr(), result.data_ptr());
    row.algorithm->run(p, op, t, {}, memory.get(), serial());
    return result;
  } catch (const CudaFailed& failed) {
    remember(*row.algorithm, p, op, failed);
    throw;
  } catch (const c10::OutOfMemoryError&) {
    const CudaFailed failed("there was no memory for its workspace");
    remember(*row.algorithm, p, op, failed);
    throw failed;
  }
}

void* stream_of(int device) { return current_stream(device).native_handle(); }

void find_runtime(const char* torch_cuda) {
  *reinterpret_cast<void**>(&ask_capturing) = dlsym(dlopen(torch_cuda, RTLD_NOW | RTLD_NOLOAD), "cudaStreamIsCapturing");
}

bool is_capturing(int device) {
  int status = 0;
  return ask_capturing && (ask_capturing(stream_of(device), &status) != 0 || status != 0);
}

void wait_for_device(int device) { current_stream(device).synchronize(); }

double seconds_on_device(int device, const std::function<void()>& run) {
  constexpr double short_time = 0.0005, most = 16;
  const c10::Stream stream = current_stream(device);
  const auto repeated = [&](int times) {
    c10::Event begin(stream.device_type(), c10::EventFlag::BACKEND_DEFAULT), end(stream.device_type(), c10::EventFlag::BACKEND_DEFAULT);
    begin.record(stream);
    for (int i = 0; i < times; i++) run();
    end.record(stream);
    end.synchronize();
    return begin.elapsedTime(end) / 1000 / times;
  };
  const double once = repeated(1);
  return once < short_time ? repeated(int(std::min(most, short_time / std::max(once, 1e-9) + 1))) : once;
}

}  // namespace msctx::glue
