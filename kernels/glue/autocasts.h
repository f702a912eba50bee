// What a thread has entered of torch.autocast since its precision policies: which of them it overrules, and what a backward pass computes
// again. torch reports each autocast that is entered or left while a policy is in force: see msctx/native/autocasts.py.
#pragma once

#include "glue/precision_policy.h"

namespace msctx::glue {

// Whether the running backward pass computes gradients. It does so in the dtypes of its forward pass, whose results it is given, also
// where it records a graph for another one; but not in a checkpoint, which computes its forward pass again, nor in what somebody has
// written out himself: the backward pass of a torch.autograd.Function.
bool is_backward();

}  // namespace msctx::glue
