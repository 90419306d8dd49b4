// Another program, run to its end: what it wrote and how it ended.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <string>
#include <vector>

#include "support/files.h"

namespace rootdk::test {

/// A folder of its own that goes when this does.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }
  std::size_t files() const;  ///< in it, hidden ones included

 private:
  std::filesystem::path path_;
};

struct Finished {
  int status = -1;  ///< as a shell has it: 128 + signal
  std::string out, err;
};

/// A program that is still running. Its output goes to files, so it never waits for a reader.
class Process {
 public:
  /// `err_descriptor` takes the place of the file for standard error, if it is given.
  Process(const std::vector<std::string>& arguments, int err_descriptor = -1);
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  void interrupt() const;
  Finished wait();

 private:
  TemporaryFolder folder_;
  pid_t id_ = -1;
};

inline Finished run(const std::vector<std::string>& arguments) { return Process(arguments).wait(); }

}  // namespace rootdk::test
