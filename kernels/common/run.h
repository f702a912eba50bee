// Running one algorithm.
#pragma once

#include "msctx/table.h"

namespace msctx {

// nullptr: the table has none of that name.
const ConvAlgorithm* algorithm_named(const ConvTable&, const char* name);
// Computes again what is not finite.
constexpr const char* safe_algorithm = "gemm";

// Runs one algorithm, and applies the epilogue of the tensors, if any, whether or not the algorithm does. Returns whether its result had
// to be computed again (see ConvAlgorithm::run and spreads_nonfinite). Forms of the weight that `kept` (may be null) does not keep are made
// in scratch. Where w is null, `kept` has it.
// `images_apart`: as so many problems of one image, of which none decides how another is computed; not for weight gradients.
bool conv_run(
    const ConvTable&, const ConvAlgorithm&, const ConvProblem&, Op, const ConvTensors&, const Kept*, const Memory&, const Parallel&,
    bool images_apart = false);
inline size_t workspace_of(const ConvAlgorithm& algorithm, const ConvProblem& p, Op op, int threads) {
  return algorithm.workspace ? algorithm.workspace(p, op, threads) : 0;
}
// Bytes beside the tensors, those of a prepared weight in its first form included.
size_t memory_of(const ConvAlgorithm&, const ConvProblem&, Op, int threads);

// The sum of the products' magnitudes behind one float32 result: `place` is its position, of a weight gradient its channel of x and tap.
double magnitude_at(const ConvProblem&, Op, const ConvTensors&, int64_t image, int64_t channel, int64_t place);

// What any result may have lost, by the largest sums of magnitudes of factors and the most factors that are not zero that one is made of.
double lost_at_most(const ConvProblem&, Op, const ConvTensors&, const Lost&, const Parallel&);

}  // namespace msctx
