// Backward passes that start after the with-block in which their forward ran: torch computes them its own way, with one warning.
#pragma once

namespace msctx {

// A weight is known by its storage.
void remember_forward(const void* weight);
void forget_forward(const void* weight);
void notice_late_backward(const void* weight);

// Weights whose forward pass was computed in float32 instead of float16: their backward pass shall be, too, wherever it runs. One that is
// gone may be taken for another one at its address.
void remember_widened(const void* weight);
bool was_widened(const void* weight);

}  // namespace msctx
