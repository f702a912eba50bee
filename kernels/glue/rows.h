// The rows that the collector hands to Python: what they hold of the tensors and the other arguments of an operator.
#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <deque>
#include <optional>
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

// What is read of tensors, beside what describes them.
struct Reading {
  bool statistics = false, digests = false;
  const std::string* folder = nullptr;  // where files of them are wanted
  int64_t reader = 0;                   // who wants them
  bool of_results = false;              // also those that are given for the results alone (out=)
  bool keeps_bits = false;              // in files, of dtypes that NumPy does not have
};

// Why statistics are not read: torch converts the dtype to no other.
inline constexpr const char* unconvertible = "PyTorch converts this dtype to no other";

// `what`: input or output. `before`: of the arguments that are written to, in order, where it is too late to read them (see known_of).
// `problem`: why a file could not be written.
std::vector<Seen> seen(
    const std::vector<c10::IValue>& values, const Row&, const char* what, const Reading&, std::string& problem,
    const std::vector<std::optional<Statistics>>* before = nullptr);

// What the names of its files begin with, for a reader.
std::string stem_of_files(const Row&, int64_t reader);
// The arguments as JSON.
std::string attributes_of(const std::vector<c10::IValue>& values, const Operator&);

}  // namespace msctx::glue
