// What a row holds of the tensors and the other arguments of an operator.
#pragma once

#include <ATen/core/ivalue.h>

#include <optional>
#include <string>
#include <vector>

#include "glue/rows.h"

namespace msctx::glue {

// What is read of tensors, beside what describes them.
struct Reading {
  bool statistics = false, digests = false;
  const std::string* folder = nullptr;  // where files of them are wanted
  int64_t reader = 0;                   // who wants them
  bool of_results = false;              // also those that are given for the results alone (out=)
  bool keeps_bits = false;              // in files, of dtypes that NumPy does not have
  bool of_any_layout = false;           // statistics, of the values that a sparse or nested one stores
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
