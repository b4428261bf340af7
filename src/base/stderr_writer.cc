#include "base/stderr_writer.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>

namespace millrace {
namespace {

/// Bounds the text that waits for a slow reader.
constexpr size_t kMaxPendingBytes = 1u << 20;

bool takes_bytes(int fd) {
  pollfd state{fd, POLLOUT, 0};
  return ::poll(&state, 1, 0) == 1 && state.revents != 0;
}

/// Writes once, without waiting even if another process fills the pipe meanwhile. Linux before 6.4 refuses the flag.
ssize_t write_some(int fd, std::string_view text) {
  struct stat status{};
  const mode_t mode = ::fstat(fd, &status) == 0 ? status.st_mode : 0;
  if (S_ISSOCK(mode)) return ::send(fd, text.data(), text.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (S_ISFIFO(mode)) {
    const iovec part{const_cast<char*>(text.data()), text.size()};
    const ssize_t written = ::pwritev2(fd, &part, 1, -1, RWF_NOWAIT);
    if (written >= 0 || (errno != EOPNOTSUPP && errno != ENOSYS && errno != EINVAL)) return written;
  }
  return ::write(fd, text.data(), text.size());
}

/// Returns how much of `text` the descriptor has taken. Text for a reader that is gone counts as taken.
size_t write_now(int fd, std::string_view text) {
  size_t done = 0;
  while (done < text.size() && takes_bytes(fd)) {
    const ssize_t written = write_some(fd, text.substr(done, PIPE_BUF));
    if (written > 0) {
      done += static_cast<size_t>(written);
    } else if (written == 0 || errno == EAGAIN) {
      break;
    } else if (errno != EINTR) {
      return text.size();
    }
  }
  return done;
}

}  // namespace

void LineWriter::write(std::string_view line) {
  write_pending();
  if (dropped_ > reported_dropped_ && pending_.empty()) {
    pending_ =
        fmt::format("{} lines of the log were dropped, because stderr was not read\n", dropped_ - reported_dropped_);
    reported_dropped_ = dropped_;
    write_pending();
  }
  const bool fits = dropped_ == reported_dropped_ && pending_.size() + line.size() <= kMaxPendingBytes;
  if (!fits) {
    ++dropped_;
    return;
  }
  pending_ += line;
  write_pending();
}

void LineWriter::finish() {
  constexpr int kTries = 100;
  constexpr int kTryMs = 10;
  write_pending();
  for (int i = 0; i < kTries && !pending_.empty(); ++i) {
    pollfd state{fd_, POLLOUT, 0};
    (void)::poll(&state, 1, kTryMs);
    write_pending();
  }
}

void LineWriter::write_pending() {
  pending_.erase(0, write_now(fd_, pending_));
}

void write_stderr(std::string_view text) {
  (void)write_now(STDERR_FILENO, text);
}

}  // namespace millrace
