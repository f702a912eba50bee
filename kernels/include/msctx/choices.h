// What ran, and why: one entry for each distinct call, counted. Entries live as long as the process.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "msctx/call.h"

namespace msctx {

struct Choice {
  std::string direction, asked, ran, provider, math;
  ConvText problem;
  double error = 0.0;      // the row's bound; 0: none is stated
  int64_t workspace = 0;   // bytes
  std::vector<std::string> reasons;
  std::atomic<int64_t> calls{0}, computed_again{0};
  std::atomic<int64_t> weights_kept{0}, weights_prepared{0};  // forms of weights that were found, that were made
};

// The entry that says the same, or a new one.
Choice* record(std::unique_ptr<Choice>);

// Entries as JSON, by their numbers: the order in which they were first met.
std::string choices_json(const int32_t* wanted, int count);

}  // namespace msctx
