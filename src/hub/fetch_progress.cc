#include "hub/fetch_progress.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "base/log.h"

namespace millrace::hub {
namespace {

constexpr int kBarWidth = 30;
constexpr auto kRedrawInterval = std::chrono::milliseconds(100);

std::string duration_text(double seconds) {
  constexpr double kMinute = 60;
  constexpr double kHour = 3600;
  if (seconds < kMinute) return fmt::format("{:.0f} s", seconds);
  if (seconds < kHour) return fmt::format("{:.0f} min", seconds / kMinute);
  return fmt::format("{:.1f} h", seconds / kHour);
}

}  // namespace

std::string progress_text(uint64_t done_bytes, uint64_t total_bytes, uint64_t fetched_bytes,
                          std::chrono::duration<double> elapsed) {
  constexpr double kGiga = 1e9;
  constexpr double kMega = 1e6;
  const bool is_large = total_bytes >= static_cast<uint64_t>(kGiga);
  const double unit = is_large ? kGiga : kMega;
  std::string text = fmt::format("{:.1f} of {:.1f} {}", static_cast<double>(done_bytes) / unit,
                                 static_cast<double>(total_bytes) / unit, is_large ? "GB" : "MB");
  const double rate = elapsed.count() > 0 ? static_cast<double>(fetched_bytes) / elapsed.count() : 0;
  if (rate <= 0) return text;
  text += fmt::format(", {:.1f} MB/s", rate / kMega);
  if (done_bytes < total_bytes)
    text += fmt::format(", {} left", duration_text(static_cast<double>(total_bytes - done_bytes) / rate));
  return text;
}

FetchProgress::FetchProgress(std::string what, uint64_t total_bytes, uint64_t present_bytes)
    : what_(std::move(what)),
      on_terminal_(isatty(STDERR_FILENO) == 1),
      total_bytes_(total_bytes),
      present_bytes_(present_bytes),
      done_bytes_(present_bytes),
      begin_(Clock::now()),
      tenths_shown_(total_bytes == 0 ? 0 : present_bytes * 10 / total_bytes) {}

FetchProgress::~FetchProgress() {
  if (on_terminal_ && shown_ != Clock::time_point{}) std::fputc('\n', stderr);
}

void FetchProgress::add(uint64_t bytes) {
  done_bytes_ += bytes;
  show();
}

void FetchProgress::add_present(uint64_t bytes) {
  present_bytes_ += bytes;
  done_bytes_ += bytes;
  show();
}

void FetchProgress::remove(uint64_t bytes) {
  done_bytes_ -= std::min(bytes, done_bytes_);
}

void FetchProgress::show() {
  if (total_bytes_ == 0) return;
  const auto now = Clock::now();
  const uint64_t fetched_bytes = done_bytes_ > present_bytes_ ? done_bytes_ - present_bytes_ : 0;
  if (on_terminal_) {
    if (now - shown_ < kRedrawInterval && done_bytes_ < total_bytes_) return;
    shown_ = now;
    const auto filled = static_cast<size_t>(done_bytes_ * kBarWidth / total_bytes_);
    const std::string bar = std::string(std::min<size_t>(filled, kBarWidth), '#') +
                            std::string(kBarWidth - std::min<size_t>(filled, kBarWidth), '.');
    std::fprintf(stderr, "\r%s [%s] %s\033[K", what_.c_str(), bar.c_str(),
                 progress_text(done_bytes_, total_bytes_, fetched_bytes, now - begin_).c_str());
    std::fflush(stderr);
    return;
  }
  const uint64_t tenths = done_bytes_ * 10 / total_bytes_;
  if (tenths <= tenths_shown_) return;
  tenths_shown_ = tenths;
  log::info("{}: {} % fetched, {}", what_, tenths * 10,
            progress_text(done_bytes_, total_bytes_, fetched_bytes, now - begin_));
}

}  // namespace millrace::hub
