// posix_spawn with output to files, and wait4 for the status and the peak of memory.
#include "support/process.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <stdexcept>

extern char** environ;

namespace rootdk::test {

Process::Process(const std::vector<std::string>& arguments, int err_descriptor, int out_descriptor) {
  std::vector<char*> words;
  for (const std::string& word : arguments) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  const auto redirect = [&](int stream, int descriptor, const char* file) {
    if (descriptor >= 0) posix_spawn_file_actions_adddup2(&actions, descriptor, stream);
    else
      posix_spawn_file_actions_addopen(&actions, stream, (folder_ / file).c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  };
  redirect(STDOUT_FILENO, out_descriptor, "out");
  redirect(STDERR_FILENO, err_descriptor, "err");
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
  rusage usage = {};
  wait4(id_, &status, 0, &usage);
  id_ = -1;
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), read_if_there(folder_ / "out"),
          read_if_there(folder_ / "err"), static_cast<std::int64_t>(usage.ru_maxrss) * 1024};
}

Finished run_in(std::int64_t bytes, const std::vector<std::string>& arguments) {
  std::vector<std::string> words = {"sh", "-c", "ulimit -v \"$0\" && exec \"$@\"", std::to_string(bytes / 1024)};
  words.insert(words.end(), arguments.begin(), arguments.end());
  return run(words);
}

}  // namespace rootdk::test
