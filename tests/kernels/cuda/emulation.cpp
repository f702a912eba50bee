// Runs kernels that were compiled for the emulation: the blocks one after the other, the threads of each as fibers.

#include <csetjmp>
#include <memory>
#include <ucontext.h>
#include <vector>

#include "emulation.h"

#include "depthwise.cuh"

#define EXPORTED extern "C" __attribute__((visibility("default")))

Triple threadIdx, blockIdx, blockDim, gridDim;

namespace {

constexpr size_t stack_size = 256 << 10;

struct Place {
  ucontext_t context;
  jmp_buf jump;
};

// From one fiber to another. What ucontext has for it asks the system for the mask of signals each time, which takes most of the
// time that a kernel with barriers does; sanitizers know that way alone.
void change(Place& from, Place& to, [[maybe_unused]] bool begins) {
#if defined(__SANITIZE_ADDRESS__)
  swapcontext(&from.context, &to.context);
#else
  if (_setjmp(from.jump)) return;
  if (begins) setcontext(&to.context);
  _longjmp(to.jump, 1);
#endif
}

struct Fiber {
  Place place;
  std::unique_ptr<char[]> stack{new char[stack_size]};
  bool begun = false, ended = false;
};

struct Block {
  void (*body)(void*);
  void* arguments;
  std::vector<Fiber> fibers;
  Place scheduler;
  unsigned current;
} block;

void fiber_main() {
  for (;;) {  // once for each block
    block.body(block.arguments);
    block.fibers[block.current].ended = true;
    change(block.fibers[block.current].place, block.scheduler, false);
  }
}

void make(unsigned threads) {
  while (block.fibers.size() < threads) {
    block.fibers.emplace_back();
    Fiber& fiber = block.fibers.back();
    getcontext(&fiber.place.context);
    fiber.place.context.uc_stack.ss_sp = fiber.stack.get();
    fiber.place.context.uc_stack.ss_size = stack_size;
    fiber.place.context.uc_link = nullptr;
    makecontext(&fiber.place.context, fiber_main, 0);
  }
}

// Each thread up to its next barrier; says how many ended.
unsigned to_barrier(unsigned threads, bool backwards) {
  unsigned ended = 0;
  for (unsigned i = 0; i < threads; i++) {
    block.current = threadIdx.x = backwards ? threads - 1 - i : i;
    Fiber& fiber = block.fibers[block.current];
    const bool begins = !fiber.begun;
    fiber.begun = true;
    change(block.scheduler, fiber.place, begins);
    ended += fiber.ended;
  }
  return ended;
}

// Runs body(arguments) for each thread of each block; `backwards`: the last block first, and of the threads that wait for nothing the
// last. false: some threads of a block ended while others waited for them.
bool launch(void (*body)(void*), void* arguments, unsigned grid, unsigned threads, bool backwards) {
  block.fibers.reserve(1024);  // they never move
  make(threads);
  block.body = body;
  block.arguments = arguments;
  gridDim = {grid, 1, 1};
  blockDim = {threads, 1, 1};
  for (unsigned i = 0; i < grid; i++) {
    blockIdx.x = backwards ? grid - 1 - i : i;
    for (unsigned t = 0; t < threads; t++) block.fibers[t].ended = false;
    unsigned ended = 0;
    while (ended == 0) ended = to_barrier(threads, backwards);
    if (ended != threads) return false;
  }
  return true;
}

// How arguments reach a kernel: pointers to tensors, then the parameters by value, as cuLaunchKernel has them.
struct Call {
  void* kernel;
  void* tensors[3];
  msctx::DepthwiseProblem parameters;
};
void call_two(void* at) {
  Call& call = *static_cast<Call*>(at);
  reinterpret_cast<void (*)(void*, void*, msctx::DepthwiseProblem)>(call.kernel)(call.tensors[0], call.tensors[1], call.parameters);
}
void call_three(void* at) {
  Call& call = *static_cast<Call*>(at);
  reinterpret_cast<void (*)(void*, void*, void*, msctx::DepthwiseProblem)>(call.kernel)(
      call.tensors[0], call.tensors[1], call.tensors[2], call.parameters);
}

}  // namespace

extern "C" void emulated_barrier() { change(block.fibers[block.current].place, block.scheduler, false); }

EXPORTED bool emulated_depthwise(
    void* kernel, void* const* tensors, int count, const msctx::DepthwiseProblem* parameters, unsigned grid, unsigned threads,
    bool backwards) {
  Call call{kernel, {}, *parameters};
  for (int i = 0; i < count; i++) call.tensors[i] = tensors[i];
  return launch(count == 2 ? call_two : call_three, &call, grid, threads, backwards);
}

EXPORTED int emulated_parameters_size() { return int(sizeof(msctx::DepthwiseProblem)); }
