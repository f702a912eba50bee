// The plain C interface of libmsctx_kernels.so: all that PyTorch's glue, Python and the tests call. A C compiler takes this header. Handles
// are opaque, structs are plain data, a callback is a function and a pointer that it is given back. Nothing is thrown across it: an int
// where no other meaning is stated is 1, or 0 if there was no memory.
#pragma once

#ifdef __cplusplus
#include <cstddef>
#include <cstdint>
#define MSCTX_API extern "C" __attribute__((visibility("default")))
#define MSCTX_ENUM(name, ...) enum class name : int32_t { __VA_ARGS__ }
#define MSCTX_ZERO {}
#define MSCTX_OR(value) = value  // where nothing else is given
#define MSCTX_REF &              // what C takes for a pointer
namespace msctx {
#else
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#define MSCTX_API extern
#define MSCTX_ENUM(name, ...) typedef int32_t name  // 0, 1, ... in this order
#define MSCTX_ZERO
#define MSCTX_OR(value)
#define MSCTX_REF *
#endif

// --- what a convolution is --------------------------------------------------------------------------------------------

MSCTX_ENUM(DType, f32, f64, f16, bf16);

// The three products of a convolution: y from x and w; the gradient of x from that of y, and w; the gradient of w from x and that of y.
MSCTX_ENUM(Op, forward, backward_data, backward_weight);

// What the user chooses an algorithm for. For a transposed convolution fprop is backward_data of the problem, dgrad is forward.
// A matmul is a convolution with a window of 1x1: the rows of the left factor are its positions, the right factor is its
// weight [columns][depth]; a transposed one if the right factor lies as [depth][columns].
MSCTX_ENUM(Direction, fprop, dgrad, wgrad, matmul);

// An ordinary convolution of x [n][c][in] with w [k][c/groups][window] to y [n][k][out], all contiguous.
// A transposed one is the same problem with the roles of x and y exchanged.
// 1-D and 2-D problems have leading extents of 1, stride 1, padding 0 and dilation 1. Padding is the same on both sides;
// rows of x that no window reaches may lie at the end. Any extent, n included, may be 0.
struct ConvProblem {
  int32_t dims;  // 1, 2 or 3: how many of the three extents count
  DType dtype;
  int64_t n, c, k, groups;
  int64_t in[3], out[3], window[3], stride[3], pad[3], dilation[3];
};

// What may follow a float32 result, in the order of the fields: activation(result * scale + shift + other), or, where `adds_last`,
// activation(result * scale + shift) + other. Null: nothing is multiplied or added.
MSCTX_ENUM(Activation, none, relu, clamp, silu, sigmoid, hardswish, hardsigmoid, gelu, gelu_tanh);
struct Epilogue {
  const float *scale MSCTX_ZERO, *shift MSCTX_ZERO;  // a value for each channel of the result
  const float* other MSCTX_ZERO;                     // shaped and laid out as the result
  Activation activation MSCTX_ZERO;
  float low MSCTX_ZERO, high MSCTX_ZERO;  // of clamp
  int32_t adds_last MSCTX_ZERO;
};

// The result of the Op is written, the two others are read. Elements of dtype. w is [k][c/groups][window]; x and y are
// [n][channels][extents], or [n][extents][channels] for algorithms that read channels_last.
struct ConvTensors {
  void* x;
  void* w;
  void* y;
  bool channels_last MSCTX_ZERO;
  // Of forward and backward_data. For algorithms that finish their results only. Those that compute in transforms or write `lost` also
  // raise `peaks`, one for each channel, to the largest magnitude that a result had before, and where (see peak_of in conv.h).
  const struct Epilogue* epilogue MSCTX_ZERO;
  int64_t* peaks MSCTX_ZERO;
  // Where an algorithm whose parts are cut below the largest values writes what that may cost.
  struct Lost* lost MSCTX_ZERO;
};

// A convolution call in plain data, whose bytes are a key: `problem` is the ordinary convolution behind a transposed one.
struct ConvCall {
  struct ConvProblem problem;
  int64_t output_padding[3];
  const char* module;  // its path, where a watched model has it; one address for each path
  // Of a matmul: its batches (0: it has none) and rows, and whether its left factor lies transposed. rows is 0 for convolutions.
  int64_t batches, rows;
  int64_t device;  // its number among those of its kind; 0 on the CPU
  int64_t keeps_weight;  // 1: frozen_weights in inference, so that what is made of the weight serves later calls
  int32_t left_transposed;
  int32_t torch_keeps_bits;  // torch's own path of it: its bits depend on neither threads nor rows
  int32_t transposed;
  int32_t channels_last;
  // What follows it in the same call (see Epilogue): the activation, and whether it has each of scale, shift, other, whether that is last.
  int32_t activation, has_scale, has_shift, has_other, adds_last;
  int32_t torch_is_deterministic;  // torch's own flags
  // The same of CUDA alone; allows_tf32: nor does the policy forbid it.
  int32_t torch_allows_tf32, allows_tf32, torch_allows_cudnn, torch_benchmarks;
};

// --- what the caller lends --------------------------------------------------------------------------------------------

// Threads. `run` calls task(arg, index, slot) once for each index below `tasks`, in any order and at once;
// slot < threads, and two calls that run at the same time have different slots. 0: not all were called. Tasks throw nothing.
struct Parallel {
  int threads;
  void* pool;
  int (*run)(void* pool, int64_t tasks, void (*task)(void* arg, int64_t index, int slot), void* arg);
};

struct Memory {
  void* (*allocate)(void* arg, size_t bytes);  // aligned to 64 bytes; null: there is none
  void (*release)(void* arg, void* data);
  void* arg;
};

// Forms of a weight (transformed, packed) that the caller keeps from call to call.
struct Kept {
  // A form by its number, of so many bytes, aligned to 64. make(with, to) makes one; 0: there was no memory. Null: it is not kept.
  // -1: the weight itself, contiguous, where ConvTensors has none; null: there is no memory.
  const void* (*form)(void* arg, int number, size_t bytes, int (*make)(void* with, void* to), void* with);
  void* arg;
};

// --- the tables of algorithms -----------------------------------------------------------------------------------------

// Why an algorithm cannot take a problem; empty: it can. The texts are literals, complete as "it takes no …" sentences are.
// {stride} and {dilation} in a text stand for those of the problem.
struct Reasons {
  int32_t count MSCTX_ZERO;
  const char* text[8];
#ifdef __cplusplus
  void add(const char* reason) {
    if (count < 8) text[count++] = reason;
  }
  void add_if(bool holds, const char* reason) {
    if (holds) add(reason);
  }
#endif
};

// What an algorithm declares about itself.
struct Prepared;
struct ConvAlgorithm {
  const char* name;  // that of its file
  // The arithmetic of the products: "strict" (float32 FMA, or the dtype's own wider sum), "fp32-grade" (products of parts of the
  // values, which lose no more than float32 sums do), "tf32" (values rounded to 11 bits or more), "float64".
  const char* math MSCTX_OR("strict");
  // The additions of each result have one order, whatever the number of threads: same bits in every run.
  bool fixed_order MSCTX_OR(true);
  // The order does not depend on the vector width either: same bits from every instruction set (a NaN's payload aside).
  bool same_on_every_isa MSCTX_OR(true);
  void (*reasons)(const struct ConvProblem MSCTX_REF, Op, struct Reasons MSCTX_REF);
  // Bytes of scratch that run() needs, beside tensors and prepared weights; may depend on the number of threads. Null: none.
  size_t (*workspace)(const struct ConvProblem MSCTX_REF, Op, int threads) MSCTX_ZERO;
  // Bound of |error| in units of the largest result or, where results cancel, of the largest sum of |products| behind one: of any data;
  // where most_spread is not 0, as far as a search for the worst data found. No less than that of gemm, if conv_run may have that compute it.
  double (*error)(const struct ConvProblem MSCTX_REF, Op);
  // workspace is aligned to 64 bytes and holds what workspace() returned. Problems without reasons that are not empty only. false: these values are
  // beyond its arithmetic (Inf, NaN), and nothing of use was written: conv_run has gemm compute them.
  bool (*run)(
      const struct ConvProblem MSCTX_REF, Op, const struct ConvTensors MSCTX_REF, const struct Prepared MSCTX_REF, void* workspace,
      const struct Parallel MSCTX_REF);
  // An Inf or NaN, or an overflow inside, reaches results that do not depend on it: where a result is not finite, conv_run
  // computes the whole problem again, by the gemm algorithm.
  bool spreads_nonfinite MSCTX_ZERO;
  // It computes in transforms, whose errors are those of a tile's largest values, also where nothing reads these: how far their norms may
  // be above what error() is in units of, see conv_run. 0: its errors are parts of the products themselves.
  double most_spread MSCTX_ZERO;
  // Whether x and y may be channels_last. One that does not read it is given copies.
  bool reads_channels_last MSCTX_ZERO;
  // Whether it applies ConvTensors::epilogue as it stores its results in float32, where `other` is null or channels_last. The bits are
  // those of a pass over the result afterwards. An epilogue is float32: other dtypes have none.
  bool finishes MSCTX_ZERO;
  // What run() asks of Prepared: bytes of the weight in a form, and how it is made of w. Null: it reads w itself. The form does not
  // depend on n, nor, where prepared_for_all_sizes, on in and out: it may come from a call with others.
  size_t (*prepared_size)(const struct ConvProblem MSCTX_REF, Op, int form) MSCTX_ZERO;
  void (*prepare)(
      const struct ConvProblem MSCTX_REF, Op, int form, const void* w, void* prepared, const struct Parallel MSCTX_REF) MSCTX_ZERO;
  bool prepared_for_all_sizes MSCTX_ZERO;
  bool prepared_if_kept MSCTX_ZERO;  // only where ConvCall::keeps_weight; else, or without room, the form is null
  // Whose code it is, for choices().
  const char* provider MSCTX_OR("msctx");
};

// What `normal` may expect of a row, from the problem alone: never from threads, memory or load.
MSCTX_ENUM(
    Merit,
    last_resort,
    fair,                        // among ours, a good guess
    runner_up,                   // measured to beat torch's own path on problems like this; another row that most often can take them, by more
    beats_torch_channels_first,  // measured to beat it, but not that for channels_last
    beats_torch_finished,        // measured to beat it and the pass after it, where a call in channels_last has an epilogue
    beats_torch,                 // in the layout of the call, if the row reads that
    beats_torch_by_far);         // even where the row has to be given copies in its own layout

// Rows of one name differ in the arithmetic of their products: the first that is allowed and can take a problem computes it.
struct ConvRow {
  Direction direction;
  const char* name;  // the option's value
  const struct ConvAlgorithm* algorithm;
  Merit (*merit)(const struct ConvProblem MSCTX_REF, Op);  // null: nothing is expected
  bool (*exists)(Op) MSCTX_ZERO;  // null: for all; another Op has none of this name, and does not list it
  Merit (*merit_of_kept)(const struct ConvProblem MSCTX_REF, Op) MSCTX_ZERO;  // where ConvCall::keeps_weight, in channels_last; null: the same
};
struct ConvTable {
  const char* isa;
  const struct ConvRow* rows;
  int32_t count;
  const struct Passes* passes MSCTX_ZERO;  // of the CPU's
  bool is_computed_again MSCTX_OR(true);   // where a result is not finite: the CPU's
};

// The instruction sets of this processor, best first; null after the last.
MSCTX_API const char* msctx_isa(int index);
MSCTX_API const char* msctx_isa_in_use(void);
MSCTX_API const char* msctx_compiler(void);
MSCTX_API int msctx_use_isa(const char* name);  // 0: not on this processor
// The table of an instruction set, null: not on this processor; of the one in use, where none is named.
MSCTX_API const struct ConvTable* msctx_table(const char* isa);

// Threads of this library's own, and a row of an instruction set's table with them: for tests and tools, without torch.
MSCTX_API struct Parallel msctx_own_threads(int threads);
// `keeps`: with forms of the weight that are kept. 1: the result had to be computed again; -1: there was no memory.
MSCTX_API int msctx_run(
    const char* isa, int index, const struct ConvProblem*, Op op, const struct ConvTensors*, int keeps, const struct Parallel*);

// --- passes over tensors, by an instruction set: null: the one in use -------------------------------------------------

// What distinguishes two tensors, by all of their bytes: see cpu/fingerprint.cpp.
struct Fingerprint {
  uint64_t low, high;
};
// What a piece of a tensor holds: see cpu/statistics.cpp. Range and sums are of the finite values.
struct Statistics {
  double least MSCTX_OR(__builtin_inf()), largest MSCTX_OR(-__builtin_inf()), sum MSCTX_ZERO, squares MSCTX_ZERO;
  int64_t count MSCTX_ZERO, nan MSCTX_ZERO, positive_inf MSCTX_ZERO, negative_inf MSCTX_ZERO, zero MSCTX_ZERO, negative MSCTX_ZERO;
};

MSCTX_API int msctx_fingerprint(const char* isa, const void* data, int64_t bytes, struct Fingerprint*, const struct Parallel*);
// Of each piece of `count` values: see statistics_piece.
MSCTX_API int msctx_statistics(
    const char* isa, DType dtype, const void* data, int64_t count, struct Statistics* pieces, const struct Parallel*);
MSCTX_API int msctx_has_nonfinite(const char* isa, DType dtype, const void* data, int64_t count);  // 1: one is not finite
// Applies an epilogue to a result [n][positions][channels].
MSCTX_API int msctx_finish(
    const char* isa, const struct Epilogue*, float* result, int64_t n, int64_t channels, int64_t positions, const struct Parallel*);

// --- policies, and what they decide -----------------------------------------------------------------------------------

// Where a policy holds: each kind of device has its own, and its own table.
MSCTX_ENUM(Place, cpu, cuda, ascend);
MSCTX_ENUM(Fallback, warn, error, silent, strict);  // strict: an error, because of strict=True

// `json`: a ConvPolicy of Python's, of a table that lives as long as the process; null: none.
MSCTX_API int msctx_put_in_force(Place place, const char* json, const struct ConvTable* table);
// 0: no policy is in force. Else a bit for each Direction in which an algorithm is requested, for some call at least, and one above them.
MSCTX_API int msctx_in_force(Place place);

// The policy in force, as an operator takes it when it begins.
struct Taken {
  int64_t number;  // a new one whenever a policy comes into force
  Place place;
  int32_t requests;  // as msctx_in_force has them
  Fallback fallback;
  int32_t thread_invariant, batch_invariant;  // the latter includes the former
  int32_t torch_keeps_products;               // the bits of torch's own matmuls depend on neither
  int32_t allow_tf32, allow_fp32_emulation;
  int32_t frozen_weights;  // a weight is looked at once while this policy is in force
};
// Null where none is in force. To be given back by the same thread; what is decided lives until then.
MSCTX_API int msctx_take(Place place, const struct Taken** taken);
MSCTX_API void msctx_give_back(const struct Taken* taken);

struct Decision {
  const struct ConvRow* row MSCTX_ZERO;  // null: torch's own path
  const char* ran MSCTX_ZERO;            // the name of the row's algorithm, or "torch"
  int32_t to_measure MSCTX_ZERO;         // `performance`, and it is not measured yet: row is that of `normal`
  // Where the named algorithm does not run: a line for a warning, and what an error says. Else null.
  const char *warning MSCTX_ZERO, *error MSCTX_ZERO;
};
// Decided once, then looked up; null: nothing is requested. `threads` are those that torch would use. `again`: a row has failed, which its
// reasons say by now.
MSCTX_API int msctx_decide(
    const struct Taken* taken, const struct ConvCall*, Direction direction, int threads, int again, const struct Decision** decision);
// A call that no row can take for this reason: one of ours, or, where that is null, one of which these words are known.
struct Words {
  const char *input, *weight, *dtype, *layout;
};
MSCTX_API int msctx_refuse(
    const struct Taken* taken, Direction direction, const struct ConvCall*, const struct Words*, const char* reason,
    const struct Decision** decision);
// Something has changed on which decisions depend: policies that come into force decide anew.
MSCTX_API void msctx_decide_anew(void);

// Computes a call by a row, or (null) by torch's own path, as it would be computed if that were chosen.
struct Contest {
  // Once before anything is measured: a first run compiles and loads. 0: it fails. May be null.
  int (*prepare)(void* arg, const struct ConvRow*);
  double (*seconds)(void* arg, const struct ConvRow*);  // that one run takes; negative: it fails
  void* arg;
};
// The decision of a measurement of a call that is to be measured, made now or before; the same where none can be made at this call.
MSCTX_API int msctx_measure(
    const struct Taken* taken, const struct ConvCall*, Direction direction, int threads, const struct Contest*,
    const struct Decision** decision);
// The answer of Python when a problem is about to be measured, and while it is:
// later: not for a second, in no thread: memory is near its cap · for_next_run: rank 0 of several processes: measured, not used before the
// next run · other_rank: one of the others · not_this_call: code is being compiled or traced in this thread, or what a signal's handler
// raised is on its way · busy: more threads are runnable than there are cores
MSCTX_ENUM(Permission, now, later, for_next_run, other_rank, not_this_call, busy);
// Who answers, by the number of the table that the result is for.
MSCTX_API void msctx_set_permission(Permission (*ask)(int32_t table));

// Computes by a row of the CPU's. 1: the result had to be computed again; -1: there was no memory.
MSCTX_API int msctx_compute(
    const struct Taken* taken, const struct ConvRow*, const struct ConvProblem*, Op op, const struct ConvTensors*, const struct Kept*,
    const struct Memory*, const struct Parallel*);
// The sums of y over images and positions: the gradient of the bias, [k], in a fixed order.
MSCTX_API int msctx_bias_gradient(
    const struct ConvProblem*, const void* y, int channels_last, int64_t channels, int64_t positions, void* bias, const struct Parallel*);
// A call has been computed as decided; forms of weights that were found, that were made.
MSCTX_API void msctx_count(const struct Taken* taken, const struct Decision*, int weights_kept, int weights_prepared, int computed_again);

// --- what Python asks for ---------------------------------------------------------------------------------------------

// What ran while something was open; null: while the process lived, and where one is to be made: there was no memory. `rules`: JSON, a
// list of ConvRule.
struct Book;
MSCTX_API struct Book* msctx_book_new(const char* rules);
MSCTX_API void msctx_book_delete(struct Book* book);
MSCTX_API int msctx_book_open(struct Book* book);
MSCTX_API int msctx_book_close(struct Book* book);
// The first of its rules, from this one on, for which there was no call since it was opened, though there were others under it. -1: none.
MSCTX_API int msctx_book_unmatched(const struct Book* book, int from);
MSCTX_API char* msctx_book_rows(const struct Book* book);  // JSON, to be freed

// Entries of a tuning file as JSON (see Core.learn), for policies that name its table.
MSCTX_API int msctx_learn(int32_t table, const char* entries);
// What was measured or recorded since the last call, as JSON, to be freed; null: nothing.
MSCTX_API char* msctx_measured(void);
// How many problems this process has measured, and how long.
MSCTX_API int64_t msctx_measurements(void);
MSCTX_API double msctx_measuring_seconds(void);

#ifdef __cplusplus
}
#endif
