// The rules of conv_algo_rules: what they ask for, where; and whether there was such a call.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "msctx/call.h"
#include "msctx/json.h"

namespace msctx {

// Where a rule holds. The same conditions are one object: policies note in it what books ask of it.
class Conditions {
 public:
  // `rule`: a ConvRule of Python's (msctx/options/conv_rules.py).
  static std::shared_ptr<Conditions> of(const Json& rule);

  // `any_module`: or may, for a call whose module is not known yet.
  bool hold_for(const ConvText&, bool any_module = false) const;

  // A call was compared with them; `books` as in count.
  void note(bool held, int64_t books);
  // Whether calls that began when this many books had been opened, or more, were compared with them, and they held for none.
  bool failed_since(int64_t books) const { return compared_ >= books && held_ < books; }

 private:
  std::vector<std::pair<std::string, std::string>> all_;
  std::atomic<int64_t> compared_{-1}, held_{-1};  // the largest `books` so far
};

}  // namespace msctx
