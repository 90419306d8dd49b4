#include "checkpoint/atomic_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <random>
#include <system_error>

#include "base/refuse.h"
#include "checkpoint/text.h"

namespace rootdk::checkpoint {

namespace {

std::filesystem::path directory_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
}

}  // namespace

AtomicFile::AtomicFile(const std::filesystem::path& path) : path_(path) {
  if (!path_.has_filename()) base::refuse("path: {} does not end in a file's name", in_quotes(path_.native()));
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
  ::unlink(temporary_.c_str());
}

void AtomicFile::fail(int error) const {
  base::refuse("{}: cannot be written: {}", printable(path_.native()), std::generic_category().message(error));
}

void AtomicFile::append(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t wrote = ::pwrite(file_, bytes.data(), bytes.size(), static_cast<off_t>(size_));
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) fail(errno);
    size_ += static_cast<std::uint64_t>(wrote);
    bytes = bytes.subspan(static_cast<std::size_t>(wrote));
  }
}

void AtomicFile::commit() {
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
