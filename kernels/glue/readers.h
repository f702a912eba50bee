// Who reads what the collector sees: what each asks for, and the rows that wait for it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "glue/rows.h"
#include "msctx/python.h"

namespace msctx::glue {

// What one reader asks for; Python has the same structure (native/core.py).
struct Asked {
  int64_t reader;                // whose queue the rows go to: a number that no other reader has had, above 0
  const char* folder;            // of its files ("": none of an overflow are written)
  int32_t inputs, outputs;       // rows of what goes in, of what comes out
  int32_t statistics, digests;   // of these tensors
  int32_t tensors;               // these tensors as files; with 2 in it, of dtypes that NumPy does not have the bits
  int32_t overflow;              // 1: of operators that compute, 2: of those that accumulate into memory; 4: what was not finite before, too
  int32_t errors;                // what goes into an operator that raises, as files
  int32_t recent;                // the last operators, in memory
  int32_t running;               // what runs now in each thread
  int32_t attributes;            // the arguments that are no tensors
  int32_t lines;                 // of the program, of the nodes that are made
  int32_t chooses;               // among operators, of which it wants rows
};
struct Reader : Asked {
  std::string files;  // its folder
  explicit Reader(const Asked& asked) : Asked(asked), files(asked.folder) { folder = nullptr; }
};
struct Config {
  std::vector<Reader> readers;
  int32_t overflow = 0, errors = 0, recent = 0, running = 0, lines = 0;  // that any of them asks for

  Config(const Asked* asked, int count);
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
