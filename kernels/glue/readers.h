// Who reads what the collector sees: what each wants, and the rows that wait for it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "glue/rows.h"
#include "msctx/json.h"
#include "msctx/python.h"

namespace msctx::glue {

// What one reader wants: each member reads its field of Python's (msctx/observers/collector.py).
struct Reader {
  Json given;
  int64_t reader = given["reader"].integer();    // whose queue the rows go to: a number that no other reader has had, above 0
  std::string files = given["folder"].text;      // its folder (empty: no files of an overflow are written)
  bool inputs = wants("inputs"), outputs = wants("outputs");           // rows of what goes in, of what comes out
  bool statistics = wants("statistics"), digests = wants("digests");   // of these tensors
  int64_t tensors = given["tensors"].integer();  // these tensors as files; with 2 in it, of dtypes that NumPy does not have the bits
  // 1: of operators that compute, 2: of those that accumulate into memory; 4: what was not finite before, too
  int overflow = int(given["overflow"].integer());
  bool errors = wants("errors");          // what goes into an operator that raises, as files
  bool recent = wants("recent");          // the last operators, in memory
  bool running = wants("running");        // what runs now in each thread
  bool attributes = wants("attributes");  // the arguments that are no tensors
  bool lines = wants("lines");            // of the program, of the nodes that are made
  bool chooses = wants("chooses");        // among operators, of which it wants rows

 private:
  bool wants(const char* name) const { return given[name].integer() != 0; }
};
struct Config {
  std::vector<Reader> readers;
  bool overflow = false, errors = false, recent = false, running = false, lines = false;  // that any of them wants

  explicit Config(const Json& readers);
};

// They ask from now on, in place of those before; nullptr: nobody does. Python's functions take rows, and choose operators.
void set_readers(std::shared_ptr<const Config>, PythonFunction take, PythonFunction choose);
// The latest of them, for a thread that knows the one of `version`; -1: none yet.
void update(std::shared_ptr<const Config>& known, int64_t& version);

bool is_chosen(const Reader& by, const Row&);
constexpr size_t enough = 512;
// Once so many wait, Python is asked to take them.
void hand_over(const Reader& to, Row&&, size_t enough_of_them);
// What nobody took in time, or could not be seen.
extern std::atomic<int64_t> dropped;

}  // namespace msctx::glue
