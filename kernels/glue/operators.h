// What observers know of an operator, by its schema and by lists.
#pragma once

#include <ATen/record_function.h>

#include <string>
#include <vector>

namespace msctx::glue {

struct Operator {
  std::string name, overload;
  bool stands_for_others = false, makes_data = true, accumulates = false, puts_constants = false, moves_data = false;
  bool chooses = false;          // one of its arguments, at each place
  bool only_checks = false;      // what another operator has computed, and raises in its place
  std::vector<std::string> arguments;
  std::vector<bool> is_written, is_result;  // in place; given for the results alone (out=)
  std::vector<size_t> unreturned;           // arguments that it writes to and does not return
  int training = -1;                        // the argument without which it writes to none of these
  size_t returns = 0;                       // values
  bool has_schema = false;
};

// Of the one that is about to run. It lives as long as the process.
const Operator& operator_of(const at::RecordFunction&);

}  // namespace msctx::glue
