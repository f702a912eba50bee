// What the kernels of the hook share with their registration.
#pragma once

#include <ATen/core/stack.h>
#include <c10/core/DispatchKey.h>
#include <c10/util/FunctionRef.h>

#include <array>
#include <tuple>

#include "glue/registered.h"
#include "glue/tensors.h"

namespace msctx::glue {

using SymInts = c10::SymIntArrayRef;
using Three = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

// Registers the kernels of convolutions for a place, at its dispatch key, and has `kernels` watch them.
template <Place place>
void install_convolutions(c10::DispatchKey, OurKernels& kernels);
// Defines msctx::convolution, for compiled code, with what follows it.
void install_finished();

extern constinit std::array<c10::DeviceType, places> devices;  // by Place

// torch's own convolution calls other operators that are hooked too, for code that calls them itself: inside it they are not asked again.
extern constinit thread_local int inside_torch;
struct InsideTorch {
  InsideTorch() { inside_torch++; }
  ~InsideTorch() { inside_torch--; }
};

// What PyTorch called for an operator at a place before ours: torch's own kernel, or one of another library.
template <Place place, class Op, class Signature = typename Op::schema>
struct Previous;
template <Place place, class Op, class Return, class... Arguments>
struct Previous<place, Op, Return(Arguments...)> {
  static inline auto& op = immortal<std::optional<c10::OperatorHandle>>();
  static inline auto& kernel = immortal<c10::KernelFunction>();
  static inline c10::DispatchKeySet keys;

  // Registers ours, where torch has one for the key.
  static void replace(c10::DispatchKey key, torch::CppFunction ours, OurKernels* kernels = nullptr) {
    op = c10::Dispatcher::singleton().findSchema({Op::name, Op::overload_name});
    if (!op || !op->hasComputedKernelForDispatchKey(key)) return;
    kernel = in_table(*op, key);
    keys = c10::DispatchKeySet(key);
    implement(*op, key, std::move(ours));
    if (kernels) kernels->watch(*op, key);
  }
  static Return call(Arguments... arguments) {
    const InsideTorch guard;
    return kernel.call<Return, Arguments...>(*op, keys, std::forward<Arguments>(arguments)...);
  }
};

// --- from a decision to a result (decisions.cpp) ----------------------------------------------------------------------

// Warns of a fallback, or raises, as the policy asks. Call it before the work, and with no lock held.
void complain(const Taken&, const Decision&, Direction);
// What is decided of a call that is not ours to compute, or nullptr. `call`: where more is known of it than its tensors.
const Decision* refused(
    const Taken&, Direction, const std::string& reason, const at::Tensor& input, const at::Tensor& weight, const char* layout = "strided",
    const ConvCall* call = nullptr);
// Complains of that, and counts it.
void refuse(const Taken&, Direction, const Decision*);
// Measures a call: run(row) computes it by a row, or (nullptr) by torch's own path, as it would be if that were chosen, and returns whether it
// prepared a weight. On a CUDA device, by its clock.
const Decision* measured(
    const Taken&, const ConvCall&, const Decision* guessed, Direction, int threads, c10::function_ref<bool(const ConvRow*)> run,
    std::optional<int> device = std::nullopt);
// The result by the row that is decided on, as `ours` computes it; undefined where torch is to compute it. The call is counted.
at::Tensor by_row(const Taken&, const Decision&, Direction, c10::function_ref<at::Tensor(const ConvRow&, Ran&)> ours);

// Registers them at the key of a place's tensors, and has `kernels` watch them.
template <Place place>
void install_products(OurKernels& kernels);

// Whether the NPU multiplies float32 matrices itself.
void set_npu(bool has_float32);

// fp16x3: on an NPU that multiplies float16 matrices only, three products of halves of the values, on others torch_npu's own, as strict is.
const ConvTable& npu_table();
bool computes_from_halves(const ConvRow&);

// a @ b of float32 matrices, or of batches of them.
at::Tensor product_of_halves(const at::Tensor& a, const at::Tensor& b);

// --- routes: operators that compute convolutions or products without those that are hooked -----------------------------

// Those of a place, at each of its dispatch keys.
void install_routes(Place, const std::vector<c10::DispatchKey>&);

}  // namespace msctx::glue
