#include "base/stderr_writer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <csignal>

#include "base/log.h"
#include "base/log_drops.h"

using namespace millrace;

namespace {

/// A pipe that nobody reads until read_all().
class Pipe {
 public:
  Pipe() { REQUIRE(::pipe2(ends_.data(), O_CLOEXEC) == 0); }
  ~Pipe() {
    close_reader();
    ::close(ends_[1]);
  }
  [[nodiscard]] int writer() const { return ends_[1]; }
  void close_reader() {
    if (ends_[0] >= 0) ::close(ends_[0]);
    ends_[0] = -1;
  }
  /// Returns what is in the pipe.
  std::string read_all() {
    REQUIRE(::fcntl(ends_[0], F_SETFL, O_NONBLOCK) == 0);
    std::string text;
    std::array<char, 4096> block{};
    for (ssize_t count = 1; count > 0;) {
      count = ::read(ends_[0], block.data(), block.size());
      if (count > 0) text.append(block.data(), static_cast<size_t>(count));
    }
    return text;
  }

 private:
  std::array<int, 2> ends_{-1, -1};
};

/// Redirects stderr to `fd` while it lives.
class RedirectedStderr {
 public:
  explicit RedirectedStderr(int fd) : previous_(::dup(STDERR_FILENO)) { ::dup2(fd, STDERR_FILENO); }
  ~RedirectedStderr() {
    ::dup2(previous_, STDERR_FILENO);
    ::close(previous_);
  }

 private:
  int previous_;
};

std::string line_of(int number) {
  return fmt::format("line {:>94}\n", number);
}

}  // namespace

TEST_CASE("a slow reader gets the lines of the bound in order") {
  Pipe pipe;
  LineWriter writer(pipe.writer());
  std::string wanted;
  for (int i = 0; i < 5000; ++i) {
    writer.write(line_of(i));
    wanted += line_of(i);
  }
  CHECK(writer.dropped() == 0);
  std::string text;
  for (int i = 5000; text.size() < wanted.size() && i < 5100; ++i) {
    text += pipe.read_all();
    writer.write(line_of(i));
    wanted += line_of(i);
  }
  CHECK(wanted.starts_with(text));
  CHECK(text.size() >= line_of(0).size() * 5000);
}

TEST_CASE("lines that nobody reads are dropped and counted") {
  Pipe pipe;
  LineWriter writer(pipe.writer());
  for (int i = 0; i < 20000; ++i) writer.write(line_of(i));
  const uint64_t dropped = writer.dropped();
  CHECK(dropped > 0);
  std::string text;
  for (int i = 0; i < 100; ++i) {
    text += pipe.read_all();
    writer.write("later\n");
  }
  text += pipe.read_all();
  CHECK_THAT(text, Catch::Contains(" lines of the log were dropped, because stderr was not read\nlater\n"));
  CHECK(text.ends_with("later\n"));
}

TEST_CASE("a log that nobody reads or that is closed blocks nobody") {
  const auto previous = std::signal(SIGPIPE, SIG_IGN);
  Pipe pipe;
  {
    const RedirectedStderr redirected(pipe.writer());
    const uint64_t before = log::dropped_lines();
    for (int i = 0; i < 20000; ++i) log::error("line {:>100}", i);
    CHECK(log::dropped_lines() > before);
    write_stderr(std::string(100000, 'x'));
    CHECK(pipe.read_all().size() > 4096);
    pipe.close_reader();
    for (int i = 0; i < 20000; ++i) log::error("line {:>100}", i);
  }
  (void)std::signal(SIGPIPE, previous);
}
