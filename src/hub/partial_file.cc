#include "hub/partial_file.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/log.h"
#include "base/text_file.h"
#include "hub/file_lock.h"
#include "hub/hub_cache.h"

namespace millrace::hub {
namespace {

[[noreturn]] void fail(const std::filesystem::path& path, const char* what) {
  throw_error(ErrorCode::kData, fmt::format("{}: {}: {}", path.string(), what, std::strerror(errno)));
}

}  // namespace

std::filesystem::path PartialFile::beside(const char* ending) const {
  return path_.string() + ending;
}

PartialFile::PartialFile(std::filesystem::path path, uint64_t size_bytes)
    : path_(std::move(path)), size_bytes_(size_bytes) {
  std::error_code failure;
  std::filesystem::create_directories(path_.parent_path(), failure);
  const auto lock = FileLock::wait_for(beside(".lock"));
  if (lock.has_error()) throw ErrorException(lock.error());
  constexpr mode_t kMode = 0644;
  descriptor_ = open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, kMode);
  if (descriptor_ < 0) fail(path_, "cannot be created");
  struct stat found{};
  if (fstat(descriptor_, &found) == 0 && static_cast<uint64_t>(found.st_size) == size_bytes_) {
    load_ranges();
  } else if (ftruncate(descriptor_, 0) != 0 || ftruncate(descriptor_, static_cast<off_t>(size_bytes_)) != 0) {
    fail(path_, "cannot be given its size");
  }
}

PartialFile::~PartialFile() {
  if (descriptor_ >= 0) close(descriptor_);
}

void PartialFile::load_ranges() {
  const auto text = read_optional_text_file(beside(".ranges"));
  if (text.has_error()) throw ErrorException(text.error());
  auto ranges = ByteRanges::parse(*text, size_bytes_);
  if (ranges.has_error()) {
    log::warn("{}.ranges: {}; the file is fetched anew", path_.string(), ranges.error().message);
    return;
  }
  for (const ByteRange& range : ranges->all()) present_.add(range);
}

void PartialFile::write(uint64_t begin, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = pwrite(descriptor_, bytes.data(), bytes.size(), static_cast<off_t>(begin));
    if (count <= 0) fail(path_, "cannot be written");
    begin += static_cast<uint64_t>(count);
    bytes = bytes.subspan(static_cast<size_t>(count));
  }
}

void PartialFile::record(ByteRange range) {
  if (fdatasync(descriptor_) != 0) fail(path_, "cannot be written");
  const auto lock = FileLock::wait_for(beside(".lock"));
  if (lock.has_error()) throw ErrorException(lock.error());
  load_ranges();
  present_.add(range);
  const auto written = write_whole_file(beside(".ranges"), present_.to_text());
  if (written.has_error()) throw ErrorException(written.error());
}

std::vector<std::byte> PartialFile::read(ByteRange range) const {
  std::vector<std::byte> bytes(range.size());
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t count =
        pread(descriptor_, bytes.data() + done, bytes.size() - done, static_cast<off_t>(range.begin + done));
    if (count <= 0) fail(path_, "cannot be read");
    done += static_cast<size_t>(count);
  }
  return bytes;
}

}  // namespace millrace::hub
