#include "model/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "base/text_file.h"

namespace millrace::model {
namespace {

/// A file descriptor that closes itself.
struct Descriptor {
  int fd = -1;
  explicit Descriptor(int opened) : fd(opened) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

std::string reason(int error) {
  return std::generic_category().message(error);
}

Result<size_t> open_regular(const std::filesystem::path& path, const Descriptor& file) {
  if (file.fd < 0) {
    const int error = errno;
    return make_error(open_error_code(path, error), "{}: cannot be opened: {}", path.string(), reason(error));
  }
  struct stat status{};
  if (::fstat(file.fd, &status) != 0)
    return make_error(ErrorCode::kData, "{}: cannot be examined: {}", path.string(), reason(errno));
  if (!S_ISREG(status.st_mode)) return make_error(ErrorCode::kData, "{}: is not a regular file", path.string());
  return static_cast<size_t>(status.st_size);
}

}  // namespace

Result<std::unique_ptr<MappedFile>> MappedFile::open(const std::filesystem::path& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  const Result<size_t> size = open_regular(path, file);
  if (!size) return size.error();
  if (*size == 0) return std::unique_ptr<MappedFile>(new MappedFile({}));
  void* mapped = ::mmap(nullptr, *size, PROT_READ, MAP_PRIVATE, file.fd, 0);
  if (mapped == MAP_FAILED)
    return make_error(ErrorCode::kData, "{}: {} bytes cannot be mapped: {}", path.string(), *size, reason(errno));
  return std::unique_ptr<MappedFile>(new MappedFile({static_cast<const std::byte*>(mapped), *size}));
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

void MappedFile::release(std::span<const std::byte> part) const {
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const auto offset = static_cast<size_t>(part.data() - bytes_.data());
  const size_t begin = (offset + page - 1) / page * page;
  const size_t end = (offset + part.size()) / page * page;
  if (begin < end) ::madvise(const_cast<std::byte*>(bytes_.data()) + begin, end - begin, MADV_DONTNEED);
}

Result<std::string> read_file(const std::filesystem::path& path, size_t limit) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  const Result<size_t> size = open_regular(path, file);
  if (!size) return size.error();
  if (*size > limit)
    return make_error(ErrorCode::kTooLarge, "{}: has {} bytes, wanted at most {}", path.string(), *size, limit);
  std::string text(*size, '\0');
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t got = ::read(file.fd, text.data() + done, text.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0)
      return make_error(ErrorCode::kData, "{}: reading stopped after {} of {} bytes: {}", path.string(), done,
                        text.size(), got < 0 ? reason(errno) : "end of file");
    done += static_cast<size_t>(got);
  }
  return text;
}

}  // namespace millrace::model
