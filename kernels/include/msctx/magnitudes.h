// Sums of magnitudes, of products and of factors: what errors are part of where results cancel.
#pragma once

#include "msctx/conv.h"

namespace msctx {

// The sum of the products' magnitudes behind one float32 result: `place` is its position, of a weight gradient its channel of x and tap.
double magnitude_at(const ConvProblem&, Op, const ConvTensors&, int64_t image, int64_t channel, int64_t place);

// What any result may have lost, by the largest sums of magnitudes of factors and the most factors that are not zero that one is made of.
double lost_at_most(const ConvProblem&, Op, const ConvTensors&, const Lost&, const Parallel&);

}  // namespace msctx
