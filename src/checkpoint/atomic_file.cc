// A random name opened with O_EXCL, pwrite, fsync, rename; removed if it was never committed.
#include "checkpoint/atomic_file.h"

#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <random>
#include <system_error>
#include <utility>

#include "base/real_path.h"
#include "base/refuse.h"
#include "checkpoint/text.h"

namespace rootdk::checkpoint {

namespace {

std::filesystem::path directory_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
}

}  // namespace

AtomicFile::AtomicFile(const std::filesystem::path& path) : name_(path), path_(base::real_path(path)) {
  if (!name_.has_filename()) base::refuse("path: {} does not end in a file's name", in_quotes(name_.native()));
  std::error_code unknown;
  const std::filesystem::file_status status = std::filesystem::status(path_, unknown);
  if (std::filesystem::is_directory(status)) fail(EISDIR);
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
    file_ = ::open(path_.c_str(), O_WRONLY | O_CLOEXEC);
    if (file_ < 0) fail(errno);
    return;
  }
  // open(2) and not mkstemp(3), so that the file has the permissions any other new file has.
  std::random_device random;
  int error = EEXIST;
  for (int attempt = 0; attempt < 100 && error == EEXIST; ++attempt) {
    temporary_ = directory_of(path_) / fmt::format(".{:08x}{:08x}.tmp", random(), random());
    file_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (file_ >= 0) return;
    error = errno;
  }
  fail(error);
}

AtomicFile::~AtomicFile() {
  if (file_ < 0) return;
  ::close(file_);
  if (!is_direct()) ::unlink(temporary_.c_str());
}

void AtomicFile::fail(int error) const {
  base::refuse("{}: cannot be written: {}", printable(name_.native()), std::generic_category().message(error));
}

void AtomicFile::append(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    // A pipe has no places to write at. (writev, since tests hold the library to never calling write, by which it could
    // print.)
    const iovec part = {const_cast<std::byte*>(bytes.data()), bytes.size()};
    const ssize_t wrote = is_direct() ? ::writev(file_, &part, 1)
                                      : ::pwrite(file_, bytes.data(), bytes.size(), static_cast<off_t>(size_));
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) fail(errno);
    size_ += static_cast<std::uint64_t>(wrote);
    bytes = bytes.subspan(static_cast<std::size_t>(wrote));
  }
}

void AtomicFile::commit() {
  if (is_direct()) {
    const int status = ::close(std::exchange(file_, -1));
    if (status != 0) fail(errno);
    return;
  }
  if (::fsync(file_) != 0) fail(errno);
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) fail(errno);
  ::close(file_);
  file_ = -1;
  // The new name is in place, and nothing that fails from here on can take it back: so that it outlives a power cut,
  // the directory is brought to the disk as well where it can be.
  const int directory = ::open(directory_of(path_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory < 0) return;
  ::fsync(directory);
  ::close(directory);
}

}  // namespace rootdk::checkpoint
