// open(2) without following links where asked, mmap where it works, pread for everything else.
#include "checkpoint/source.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <new>
#include <system_error>

#include "checkpoint/text.h"

namespace rootdk::checkpoint {

namespace {

// Read at once where less is asked for: headers are read number by number.
constexpr std::uint64_t kPiece = std::uint64_t{1} << 16;

std::string reason(int error) { return std::generic_category().message(error); }

}  // namespace

std::shared_ptr<const Source> Source::open(const std::filesystem::path& path, const OpenOptions& options) {
  std::shared_ptr<Source> source(new Source(path, printable(path.native())));
  source->open(path, 0, options.map);
  return source;
}

std::shared_ptr<const Source> Source::open_real(const std::filesystem::path& path, const std::filesystem::path& real,
                                                const OpenOptions& options) {
  std::shared_ptr<Source> source(new Source(path, printable(path.native())));
  source->open(real, O_NOFOLLOW, options.map);
  return source;
}

void Source::open(const std::filesystem::path& real, int flags, bool map) {
  file_ = ::open(real.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | flags);
  if (file_ < 0) refuse("{}: cannot be opened: {}", name_, reason(errno));
  struct stat status = {};
  if (::fstat(file_, &status) != 0) refuse("{}: cannot be opened: {}", name_, reason(errno));
  if (!S_ISREG(status.st_mode)) refuse("{}: not a regular file", name_);
  size_ = static_cast<std::uint64_t>(status.st_size);
  if (size_ == 0 || !map || size_ > std::numeric_limits<std::size_t>::max()) return;
  const auto size = static_cast<std::size_t>(size_);
  void* const data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file_, 0);
  if (data != MAP_FAILED) bytes_ = {static_cast<const std::byte*>(data), size};
}

std::shared_ptr<const Source> Source::memory(std::string name, std::span<const std::byte> bytes) {
  std::shared_ptr<Source> source(new Source(name, printable(name)));
  source->bytes_ = bytes;
  source->size_ = bytes.size();
  return source;
}

std::shared_ptr<const Source> Source::elsewhere(const std::filesystem::path& path, Elsewhere file) {
  std::shared_ptr<Source> source(new Source(path, printable(path.native())));
  source->elsewhere_ = true;
  source->size_ = file.size;
  for (Elsewhere::Run& run : file.runs) {
    if (run.offset > file.size || run.bytes.size() > file.size - run.offset)
      source->refuse_at(run.offset, "{} bytes were fetched from here, but the file has {}", run.bytes.size(),
                        file.size);
    source->pieces_.emplace(run.offset, std::move(run.bytes));
  }
  return source;
}

Source::~Source() {
  if (file_ < 0) return;
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
  ::close(file_);
}

std::span<const std::byte> Source::bytes(std::uint64_t offset, std::uint64_t length) const {
  if (length == 0) return {};
  if (!bytes_.empty()) return bytes_.subspan(offset, length);
  const std::lock_guard lock(mutex_);
  if (const auto found = kept(offset, length); !found.empty()) return found;
  if (elsewhere_) refuse_at(offset, "lies on another machine");
  const std::uint64_t wanted = std::min(std::max(length, kPiece), size_ - offset);
  if (wanted > std::numeric_limits<std::size_t>::max()) throw std::bad_alloc();
  std::vector<std::byte> piece(static_cast<std::size_t>(wanted));
  read(offset, piece);
  return std::span(pieces_.emplace(offset, std::move(piece))->second)
      .first(length);  // the last of this offset, so the longest
}

// Of what was read or fetched; empty if it was not. mutex_ is held, or nothing is added any more.
std::span<const std::byte> Source::kept(std::uint64_t offset, std::uint64_t length) const {
  const auto after = pieces_.upper_bound(offset);
  if (after == pieces_.begin()) return {};
  const auto& [begin, piece] = *std::prev(after);
  return offset + length <= begin + piece.size() ? std::span(piece).subspan(offset - begin, length)
                                                 : std::span<const std::byte>();
}

std::string_view Source::text(std::uint64_t offset, std::uint64_t length) const {
  const auto part = bytes(offset, length);
  return {reinterpret_cast<const char*>(part.data()), part.size()};
}

void Source::read(std::uint64_t offset, std::span<std::byte> out) const {
  if (file_ < 0) {
    const auto from = elsewhere_ ? bytes(offset, out.size()) : bytes_.subspan(offset, out.size());
    if (!out.empty()) std::memcpy(out.data(), from.data(), out.size());
    return;
  }
  while (!out.empty()) {
    const ssize_t got = ::pread(file_, out.data(), out.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) refuse_at(offset, "cannot be read: {}", reason(errno));
    if (got == 0) refuse_at(offset, "the file ends here, but it had {} bytes when it was opened", size());
    offset += static_cast<std::uint64_t>(got);
    out = out.subspan(static_cast<std::size_t>(got));
  }
}

}  // namespace rootdk::checkpoint
