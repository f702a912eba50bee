// Backward passes that start after the with-block in which their forward ran: torch computes them its own way, and that is told once.
#pragma once

namespace msctx {

// A weight is known by its storage.
void remember_forward(const void* weight);
void forget_forward(const void* weight);
void notice_late_backward(const void* weight);

}  // namespace msctx
