#pragma once

#include <string>

#include "model/weights.h"

namespace millrace::app {

/// Shows how far loading has come: a bar on a terminal, else a log line per tenth.
class LoadProgress {
 public:
  explicit LoadProgress(std::string what);
  void update(const model::LoadProgress& done);

 private:
  void draw_bar(double fraction) const;

  const std::string what_;
  const bool on_terminal_;
  int tenths_shown_ = 0;
};

}  // namespace millrace::app
