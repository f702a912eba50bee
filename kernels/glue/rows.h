// The rows that the collector hands to Python.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "glue/operators.h"
#include "msctx/table.h"

namespace msctx::glue {

// A tensor that went into it or came out of it.
struct Seen {
  std::string argument, dtype, shape, strides, device, file;
  std::string unread;  // why it is not; "": it is, where somebody asks
  bool requires_grad = false, has_digest = false, has_statistics = false;
  bool is_written = false;  // by the operator, in place or as a result (out=)
  Statistics statistics;
  uint64_t digest = 0;
};

// An operator that ran.
struct Row {
  int64_t id = 0, step = 0, maker = -1, began = 0, took = 0;  // maker: of the node that it computes; microseconds
  const Operator* op = nullptr;
  const char* module = "";  // its path
  const char* direction = "forward";
  const char* line = "";  // of the maker
  std::string node, algorithm, attributes, problem;
  uint64_t thread = 0;
  std::vector<Seen> inputs, outputs;
};

std::string json_of(const std::deque<Row>&);

}  // namespace msctx::glue
