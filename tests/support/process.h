// Another program, run to its end: what it wrote and how it ended.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "support/files.h"

namespace rootdk::test {

struct Finished {
  int status = -1;  ///< as a shell has it: 128 + signal
  std::string out, err;
  std::int64_t peak = 0;  ///< the most memory that it had, in bytes; never less than this process has
};

/// A program that is still running. Its output goes to files, so it never waits for a reader.
class Process {
 public:
  /// Descriptors take the place of the files for standard error and standard output, if they are given.
  Process(const std::vector<std::string>& arguments, int err_descriptor = -1, int out_descriptor = -1);
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  void interrupt() const;
  Finished wait();

 private:
  TemporaryDirectory folder_;
  pid_t id_ = -1;
};

inline Finished run(const std::vector<std::string>& arguments) { return Process(arguments).wait(); }

/// With so many bytes of addresses and no more: ulimit -v.
Finished run_in(std::int64_t bytes, const std::vector<std::string>& arguments);

}  // namespace rootdk::test
