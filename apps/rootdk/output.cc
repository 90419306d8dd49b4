// A temporary file beside the target, synced and renamed; pipes and devices are written to directly.
#include "output.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <system_error>

#include "base/real_path.h"
#include "rootdk/error.h"

namespace rootdk::app {

namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(std::string_view where, int error) {
  throw Error(ErrorCode::kInvalidArgument, fmt::format("{}: {}", where, std::generic_category().message(error)));
}

class File {
 public:
  explicit File(int descriptor) : descriptor_(descriptor) {}
  ~File() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  bool is_open() const { return descriptor_ >= 0; }
  int get() const { return descriptor_; }

  /// 0, or errno.
  int write_all(std::string_view bytes) const {
    while (!bytes.empty()) {
      const ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) return errno;
      bytes.remove_prefix(static_cast<std::size_t>(written));
    }
    return 0;
  }
  /// Some file systems say only now that there was no room.
  int close() {
    const int descriptor = descriptor_;
    descriptor_ = -1;
    return ::close(descriptor) == 0 ? 0 : errno;
  }

 private:
  int descriptor_;
};

mode_t usual_mode() {
  const mode_t mask = ::umask(0);
  ::umask(mask);
  return 0666 & ~mask;
}

// `path` is where the file is, `name` what it was called.
void write_directly(const fs::path& name, const fs::path& path, std::string_view bytes) {
  File file(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (!file.is_open()) fail(name.string(), errno);
  if (const int error = file.write_all(bytes)) fail(name.string(), error);
  if (const int error = file.close()) fail(name.string(), error);
}

void write_beside(const fs::path& name, const fs::path& path, std::string_view bytes) {
  std::string temporary = (path.parent_path() / fmt::format(".{}.XXXXXX", path.filename().string())).string();
  File file(::mkostemp(temporary.data(), O_CLOEXEC));
  if (!file.is_open()) fail(name.string(), errno);
  int error = ::fchmod(file.get(), usual_mode()) == 0 ? 0 : errno;
  if (!error) error = file.write_all(bytes);
  if (!error && ::fsync(file.get()) != 0 && errno != EINVAL) error = errno;
  if (const int at_close = file.close(); !error) error = at_close;
  if (!error && std::rename(temporary.c_str(), path.c_str()) != 0) error = errno;
  if (!error) return;
  ::unlink(temporary.c_str());
  fail(name.string(), error);
}

}  // namespace

void write_file(const fs::path& path, std::string_view bytes) {
  const fs::path target = base::real_path(path);  // a link stays a link
  std::error_code error;
  const fs::file_status status = fs::status(target, error);
  if (fs::is_directory(status)) fail(path.string(), EISDIR);
  if (fs::exists(status) && !fs::is_regular_file(status)) return write_directly(path, target, bytes);
  write_beside(path, target, bytes);
}

Folder::Folder(const fs::path& path) {
  std::error_code error;
  for (fs::path missing = fs::absolute(path).lexically_normal(); !missing.empty() && !fs::exists(missing, error);
       missing = missing.parent_path())
    if (missing.has_filename()) made_.insert(made_.begin(), missing);
  fs::create_directories(path, error);
  const int status = error ? error.value() : fs::is_directory(path) ? 0 : ENOTDIR;
  if (status == 0) return;
  tidy();
  fail(path.string(), status);
}

void Folder::tidy() noexcept {
  std::error_code error;  // of one that is not empty, which is as it should be
  for (auto folder = made_.rbegin(); folder != made_.rend(); ++folder) fs::remove(*folder, error);
}

}  // namespace rootdk::app
