#include "support/captured_log.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <sstream>

namespace millrace::test {

CapturedLog::CapturedLog() : file_(memfd_create("log", MFD_CLOEXEC)), previous_(dup(STDERR_FILENO)) {
  REQUIRE(file_ >= 0);
  REQUIRE(fcntl(file_, F_SETFL, O_APPEND) == 0);
  dup2(file_, STDERR_FILENO);
}

CapturedLog::~CapturedLog() {
  dup2(previous_, STDERR_FILENO);
  close(previous_);
  close(file_);
}

std::string CapturedLog::text() const {
  std::string text;
  char block[4096];
  for (ssize_t count = 1; count > 0;) {
    count = pread(file_, block, sizeof block, static_cast<off_t>(text.size()));
    if (count > 0) text.append(block, static_cast<size_t>(count));
  }
  return text;
}

size_t CapturedLog::count(const std::string& part) const {
  std::istringstream lines(text());
  size_t found = 0;
  for (std::string line; std::getline(lines, line);) found += line.find(part) != std::string::npos ? 1 : 0;
  return found;
}

}  // namespace millrace::test
