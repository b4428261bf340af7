#include "app/load_progress.h"

#include <unistd.h>

#include <cstdio>

#include "base/log.h"

namespace millrace::app {
namespace {

constexpr int kBarWidth = 40;
/// Loads below this size are over before a line could be read.
constexpr uint64_t kQuietBytes = 64u << 20;

}  // namespace

LoadProgress::LoadProgress(std::string what) : what_(std::move(what)), on_terminal_(isatty(STDERR_FILENO) == 1) {}

void LoadProgress::update(const model::LoadProgress& done) {
  if (done.bytes_total == 0) return;
  const double fraction = static_cast<double>(done.bytes_done) / static_cast<double>(done.bytes_total);
  if (on_terminal_) {
    draw_bar(fraction);
    return;
  }
  const int tenths = static_cast<int>(fraction * 10);
  if (done.bytes_total < kQuietBytes || tenths <= tenths_shown_) return;
  tenths_shown_ = tenths;
  log::info("{}: {} % loaded, {:.1f} of {:.1f} MB", what_, tenths * 10, static_cast<double>(done.bytes_done) / 1e6,
            static_cast<double>(done.bytes_total) / 1e6);
}

void LoadProgress::draw_bar(double fraction) const {
  const int filled = static_cast<int>(fraction * kBarWidth);
  const std::string bar =
      std::string(static_cast<size_t>(filled), '#') + std::string(static_cast<size_t>(kBarWidth - filled), '.');
  std::fprintf(stderr, "\r%s [%s] %3d %%", what_.c_str(), bar.c_str(), static_cast<int>(fraction * 100));
  if (fraction >= 1.0) std::fputc('\n', stderr);
  std::fflush(stderr);
}

}  // namespace millrace::app
