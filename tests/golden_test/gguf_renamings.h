#pragma once

#include <string>
#include <vector>

namespace millrace::test {

/// The names of a module in safetensors and in GGUF files.
struct GgufRenaming {
  std::string architectures;  ///< that have it, each with a blank after it; empty: all
  std::string module;
  std::string stored;
};

/// Returns all names; of several rows that fit, the first counts.
[[nodiscard]] const std::vector<GgufRenaming>& gguf_renamings();

}  // namespace millrace::test
