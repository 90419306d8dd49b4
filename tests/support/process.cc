#include "support/process.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <iterator>
#include <stdexcept>

extern char** environ;

namespace rootdk::test {

TemporaryFolder::TemporaryFolder() {
  std::string name = (std::filesystem::temp_directory_path() / "rootdk-test-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary folder");
  path_ = name;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::size_t TemporaryFolder::files() const {
  return static_cast<std::size_t>(
      std::distance(std::filesystem::directory_iterator(path_), std::filesystem::directory_iterator()));
}

Process::Process(const std::vector<std::string>& arguments, int err_descriptor) {
  std::vector<char*> words;
  for (const std::string& word : arguments) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, (folder_ / "out").c_str(), O_WRONLY | O_CREAT | O_TRUNC,
                                   0600);
  if (err_descriptor >= 0) posix_spawn_file_actions_adddup2(&actions, err_descriptor, STDERR_FILENO);
  else
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, (folder_ / "err").c_str(), O_WRONLY | O_CREAT | O_TRUNC,
                                     0600);
  const int error = posix_spawnp(&id_, words[0], &actions, nullptr, words.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) throw std::runtime_error("could not start " + arguments[0]);
}

Process::~Process() {
  if (id_ < 0) return;
  kill(id_, SIGKILL);
  waitpid(id_, nullptr, 0);
}

void Process::interrupt() const { kill(id_, SIGINT); }

Finished Process::wait() {
  int status = 0;
  waitpid(id_, &status, 0);
  id_ = -1;
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), read_if_there(folder_ / "out"),
          read_if_there(folder_ / "err")};
}

}  // namespace rootdk::test
