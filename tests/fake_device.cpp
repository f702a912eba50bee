// "far": an accelerator for tests. Its memory is the host's, its arithmetic is the CPU's to the last bit, and to PyTorch it is
// a device like any other: a dispatch key, an allocator that counts, streams that all finish at once, the autograd engine's threads, pinned memory.
//
// No operator is written for it. One boxed function lends the far tensors to the operator of the CPU: tensors that are called
// CPU's, in the same memory. What was changed in place is changed, a view is a view, and new memory becomes far memory.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_fused_sdp_choice.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace {

using c10::DataPtr;
using c10::Device;
using c10::DeviceIndex;
using c10::DispatchKey;
using c10::Storage;
using c10::Stream;
using torch::jit::Stack;

const Device fake_device(c10::kPrivateUse1, 0);

Storage new_storage(size_t bytes, DataPtr data, c10::Allocator* allocator) {
  return c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes, std::move(data), allocator, /*resizable=*/true);
}

// --- memory ----------------------------------------------------------------------------------------------------------

// torch.accelerator reads its counts. What a CPU operator needs besides its results is not counted.
struct FarAllocator final : c10::DeviceAllocator {
  std::mutex lock;
  c10::CachingDeviceAllocator::DeviceStats stats;

  std::atomic<size_t> largest{SIZE_MAX};

  // Far memory that is the memory of a storage of the CPU, which it keeps alive.
  DataPtr adopt(Storage cpu) {
    TORCH_CHECK_WITH(OutOfMemoryError, cpu.nbytes() <= largest, "far out of memory. Tried to allocate ", cpu.nbytes(), " bytes");
    void* data = cpu.mutable_data();
    each_count([&](auto& stat) { stat.increase(cpu.nbytes()); });
    return {data, new Storage(std::move(cpu)), &release, fake_device};
  }
  static void release(void* held);

  template <class Change>
  void each_count(Change change) {
    const std::lock_guard<std::mutex> guard(lock);
    for (auto* bytes : {&stats.allocated_bytes, &stats.active_bytes, &stats.reserved_bytes, &stats.requested_bytes}) change((*bytes)[0]);
  }

  DataPtr allocate(size_t bytes) override {
    auto* cpu = c10::GetAllocator(c10::kCPU);
    return adopt(new_storage(bytes, cpu->allocate(bytes), cpu));
  }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const DataPtr&, Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(DeviceIndex) override {
    const std::lock_guard<std::mutex> guard(lock);
    return stats;
  }
  void resetAccumulatedStats(DeviceIndex) override {
    each_count([](auto& stat) { stat.reset_accumulated(); });
  }
  void resetPeakStats(DeviceIndex) override {
    each_count([](auto& stat) { stat.reset_peak(); });
  }
};
auto* const memory = new FarAllocator;  // never destroyed: tensors may live on while the process ends

void FarAllocator::release(void* held) {
  auto* cpu = static_cast<Storage*>(held);
  memory->each_count([&](auto& stat) { stat.decrease(cpu->nbytes()); });
  delete cpu;
}

// From now on larger blocks are refused, as if there were no memory; -1: none are.
extern "C" __attribute__((visibility("default"))) void far_limit_blocks(int64_t bytes) { memory->largest = size_t(bytes); }

// Host memory that is only marked, so that is_pinned() tells what asked for it.
struct PinnedAllocator final : c10::Allocator {
  static inline std::mutex lock;
  static inline auto& blocks = *new std::map<const char*, std::pair<size_t, DataPtr>>;

  DataPtr allocate(size_t bytes) override {
    DataPtr block = c10::GetAllocator(c10::kCPU)->allocate(bytes);
    void* data = block.get();
    if (data == nullptr) return block;
    const std::lock_guard<std::mutex> guard(lock);
    blocks.emplace(static_cast<const char*>(data), std::pair(bytes, std::move(block)));
    return {data, data, &release, Device(c10::kCPU)};
  }
  static void release(void* data) {
    const std::lock_guard<std::mutex> guard(lock);
    blocks.erase(static_cast<const char*>(data));
  }
  static bool has(const void* data) {
    const std::lock_guard<std::mutex> guard(lock);
    const auto* at = static_cast<const char*>(data);
    const auto next = blocks.upper_bound(at);
    return next != blocks.begin() && at < std::prev(next)->first + std::prev(next)->second.first;
  }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
};

// --- operators -------------------------------------------------------------------------------------------------------

at::Tensor relabelled(const at::Tensor& tensor, Storage storage, DispatchKey key) {
  const auto lazy = tensor.key_set() & c10::DispatchKeySet({DispatchKey::Conjugate, DispatchKey::Negative});
  auto made = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), lazy.add(key), tensor.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  return made;
}

// The tensors of one call of an operator.
struct Loan {
  struct Lent {
    at::Tensor own, cpu;
    bool written;
  };
  std::vector<std::pair<Storage, Storage>> storages;  // far, and what the CPU has for it
  std::vector<Lent> tensors;

  Storage lend(const Storage& own) {
    TORCH_CHECK(own.device() == fake_device, "Expected all tensors to be on the same device, but a storage is on ", own.device());
    for (const auto& [far, cpu] : storages)
      if (far.is_alias_of(own)) return cpu;
    // An operator may keep the tensor, and so the memory; one that resizes it gets new memory of the CPU
    DataPtr data(own.mutable_data(), new Storage(own), [](void* held) { delete static_cast<Storage*>(held); }, Device(c10::kCPU));
    storages.emplace_back(own, new_storage(own.nbytes(), std::move(data), c10::GetAllocator(c10::kCPU)));
    return storages.back().second;
  }

  at::Tensor lend(const at::Tensor& own, bool written, bool mixed) {
    if (!own.defined()) return own;
    at::Tensor cpu = own;
    if (own.is_privateuseone()) {
      cpu = relabelled(own, lend(own.storage()), DispatchKey::CPU);
      auto* impl = cpu.unsafeGetTensorImpl();
      if (own.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
      // What is cached for a tensor at a version must not be taken for the next one
      if (!own.is_inference() && !cpu.is_inference()) impl->set_version_counter(own.unsafeGetTensorImpl()->version_counter());
    } else {  // as with CUDA, one number may come from the CPU
      TORCH_CHECK(
          mixed || (own.is_cpu() && own.dim() == 0 && !written),
          "Expected all tensors to be on the same device, but found at least two devices, ", fake_device, " and ", own.device(), "!");
    }
    tensors.push_back({own, cpu, written});
    return cpu;
  }

  Storage owner(const Storage& of_cpu) {
    for (const auto& [far, cpu] : storages)
      if (cpu.is_alias_of(of_cpu)) return far;
    storages.emplace_back(new_storage(of_cpu.nbytes(), memory->adopt(of_cpu), memory), of_cpu);
    return storages.back().first;
  }

  // Far tensors take over what became of those that were lent: a new size, a new place, other memory.
  void settle() {
    for (const auto& [far, cpu] : storages)
      if (far.data() != cpu.data()) {
        far.unsafeGetStorageImpl()->set_data_ptr_noswap(memory->adopt(cpu));
        far.unsafeGetStorageImpl()->set_nbytes(cpu.nbytes());
      }
    for (const auto& [own, cpu, written] : tensors) {
      if (!written || !own.is_privateuseone()) continue;
      auto* impl = own.unsafeGetTensorImpl();
      if (const Storage now = owner(cpu.storage()); !now.is_alias_of(own.storage())) impl->set_storage_keep_dtype(now);
      if (own.sizes() != cpu.sizes() || own.strides() != cpu.strides() || own.storage_offset() != cpu.storage_offset())
        impl->set_sizes_and_strides(cpu.sizes(), cpu.strides(), cpu.storage_offset());
    }
  }

  at::Tensor returned(const at::Tensor& result) {
    if (!result.defined()) return result;
    for (const auto& lent : tensors)
      if (lent.cpu.is_same(result)) return lent.own;
    return relabelled(result, owner(result.storage()), DispatchKey::PrivateUse1);
  }
};

void run_on_cpu(const c10::OperatorHandle& op, Stack* stack, bool mixed) {
  const auto& arguments = op.schema().arguments();
  Loan loan;
  for (size_t i = 0; i < arguments.size(); i++) {
    c10::IValue& value = (*stack)[stack->size() - arguments.size() + i];
    const bool written = arguments[i].alias_info() != nullptr && arguments[i].alias_info()->isWrite();
    if (value.isTensor()) {
      value = loan.lend(value.toTensor(), written, mixed);
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> lent;
      for (const at::Tensor& each : value.toTensorVector()) lent.push_back(loan.lend(each, written, mixed));
      value = std::move(lent);
    } else if (value.isOptionalTensorList()) {  // of indices, which may come from the CPU
      c10::List<std::optional<at::Tensor>> lent;
      for (const auto& each : value.toOptionalTensorVector())
        lent.push_back(each ? std::optional(loan.lend(*each, written, /*mixed=*/true)) : std::nullopt);
      value = std::move(lent);
    } else if (value.isStorage()) {
      value = loan.lend(value.toStorage());
    } else if (value.isDevice()) {
      value = Device(c10::kCPU);
    }
  }
  op.redispatchBoxed(c10::DispatchKeySet(DispatchKey::CPU), stack);
  loan.settle();
  for (size_t i = stack->size() - op.schema().returns().size(); i < stack->size(); i++) {
    c10::IValue& value = (*stack)[i];
    if (value.isTensor()) {
      value = loan.returned(value.toTensor());
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> results;
      for (const at::Tensor& each : value.toTensorVector()) results.push_back(loan.returned(each));
      value = std::move(results);
    }
  }
}

void fallback(const c10::OperatorHandle& op, Stack* stack) { run_on_cpu(op, stack, false); }

c10::OperatorHandle aten(const char* name) { return c10::Dispatcher::singleton().findSchemaOrThrow(name, ""); }

void copy_from(const c10::OperatorHandle&, Stack* stack) {
  std::swap(*(stack->end() - 3), *(stack->end() - 2));
  run_on_cpu(aten("aten::copy_"), stack, true);
}

void convolution(const c10::OperatorHandle&, Stack* stack) { run_on_cpu(aten("aten::convolution"), stack, false); }

void convolution_backward(const c10::OperatorHandle&, Stack* stack) {  // the other has the bias' size as well
  const auto gradient = stack->end() - 10;
  const std::vector<int64_t> bias{gradient->toTensor().size(1)};
  stack->insert(gradient + 3, bias);
  run_on_cpu(aten("aten::convolution_backward"), stack, false);
}

// Which attention: the one that the CPU takes.
int64_t attention(
    const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const std::optional<at::Tensor>& mask, double dropout,
    bool causal, std::optional<double> scale, bool grouped) {
  return at::_fused_sdp_choice(query, key, value, mask, dropout, causal, scale, grouped);
}

// p.data = …: a parameter may change its device.
void has_compatible_type(const c10::OperatorHandle&, Stack* stack) {
  stack->resize(stack->size() - 2);
  stack->emplace_back(true);
}

// --- device ----------------------------------------------------------------------------------------------------------

struct Guard final : c10::impl::NoOpDeviceGuardImpl<c10::kPrivateUse1> {
  using Time = std::chrono::steady_clock::time_point;
  static inline thread_local c10::StreamId current = 0;
  static inline std::atomic<c10::StreamId> last{0};
  static Stream stream(c10::StreamId id) { return Stream(Stream::UNSAFE, fake_device, id); }

  Device exchangeDevice(Device) const override { return fake_device; }
  Device getDevice() const override { return fake_device; }
  Stream getStream(Device) const noexcept override { return stream(current); }
  Stream getDefaultStream(Device) const override { return stream(0); }
  Stream getNewStream(Device, int) const override { return stream(++last); }
  Stream getStreamFromGlobalPool(Device, bool) const override { return stream(++last); }
  Stream exchangeStream(Stream next) const noexcept override { return stream(std::exchange(current, next.id())); }
  void* getStreamNativeHandle(const Stream stream) const override { return reinterpret_cast<void*>(stream.id()); }
  void record(void** event, const Stream&, const DeviceIndex, const c10::EventFlag) const override {
    destroyEvent(*event, 0);
    *event = new Time(std::chrono::steady_clock::now());
  }
  void destroyEvent(void* event, const DeviceIndex) const noexcept override { delete static_cast<Time*>(event); }
  void block(void*, const Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void*) const override {}
  void synchronizeDevice(const DeviceIndex) const override {}
  double elapsedTime(void* from, void* to, const DeviceIndex) const override {
    return std::chrono::duration<double, std::milli>(*static_cast<Time*>(to) - *static_cast<Time*>(from)).count();
  }
};

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return 1; }
  void setCurrentDevice(DeviceIndex) const override {}
  DeviceIndex getCurrentDevice() const override { return 0; }
  DeviceIndex exchangeDevice(DeviceIndex) const override { return 0; }
  DeviceIndex maybeExchangeDevice(DeviceIndex) const override { return 0; }
  Device getDeviceFromPtr(void*) const override { return fake_device; }
  bool isPinnedPtr(const void* data) const override { return PinnedAllocator::has(data); }
  c10::Allocator* getPinnedMemoryAllocator() const override {
    static auto* pinned = new PinnedAllocator;
    return pinned;
  }
  // Random numbers are the CPU's, so a seed gives what it gives there.
  const at::Generator& getDefaultGenerator(DeviceIndex) const override { return at::detail::getDefaultCPUGenerator(); }
  at::Generator getNewGenerator(DeviceIndex) const override { return at::detail::createCPUGenerator(); }
  void resizePrivateUse1Bytes(const Storage& storage, size_t bytes) const override {
    DataPtr data = memory->allocate(bytes);
    if (const size_t kept = std::min(bytes, storage.nbytes())) std::memcpy(data.get(), storage.data(), kept);
    storage.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(data));
    storage.unsafeGetStorageImpl()->set_nbytes(bytes);
  }
};

// --- registration: when the library is loaded, for good --------------------------------------------------------------

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

void implement(const c10::OperatorName& name, c10::KernelFunction function, DispatchKey key) {
  static auto* kept = new std::vector<c10::RegistrationHandleRAII>;
  kept->push_back(c10::Dispatcher::singleton().registerImpl(name, key, std::move(function), std::nullopt, nullptr, "far"));
}

template <c10::KernelFunction::BoxedKernelFunction* function>
void implement(const c10::OperatorName& name, DispatchKey key = DispatchKey::PrivateUse1) {
  implement(name, c10::KernelFunction::makeFromBoxedFunction<function>(), key);
}

const bool registered = [] {
  c10::SetAllocator(c10::kPrivateUse1, memory);
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  auto& dispatcher = c10::Dispatcher::singleton();
  static const auto& kept = *new std::array{
      dispatcher.registerFallback(DispatchKey::PrivateUse1, c10::KernelFunction::makeFromBoxedFunction<&fallback>(), "far"),
      dispatcher.registerFallback(DispatchKey::AutocastPrivateUse1, c10::KernelFunction::makeFallthrough(), "far")};
  // Where the CPU has an operator of its own, so has far: otherwise what PyTorch composes of others would go first
  for (const auto& name : dispatcher.getAllOpNames())
    if (const auto op = dispatcher.findSchema(name);
        op && op->hasKernelForDispatchKey(DispatchKey::CPU) && !op->hasKernelForDispatchKey(DispatchKey::PrivateUse1))
      implement<&fallback>(name);
  implement<&copy_from>({"aten::_copy_from", ""});
  // It copies conjugates, too: PyTorch would resolve them first, by a copy
  for (const auto lazy : {DispatchKey::Conjugate, DispatchKey::Negative})
    implement({"aten::_copy_from", ""}, c10::KernelFunction::makeFallthrough(), lazy);
  implement<&convolution>({"aten::convolution_overrideable", ""});
  implement<&convolution_backward>({"aten::convolution_backward_overrideable", ""});
  implement<&has_compatible_type>({"aten::_has_compatible_shallow_copy_type", ""});
  at::native::_fused_sdp_choice_stub.set_privateuse1_dispatch_ptr(&attention);
  return !kept.empty();
}();

}  // namespace
