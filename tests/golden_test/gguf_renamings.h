#pragma once

#include <span>
#include <string_view>

namespace millrace::test {

/// The names of a module in safetensors and in GGUF files.
struct GgufRenaming {
  std::string_view architectures;  ///< that have it, each with a blank after it; empty: all
  std::string_view module;
  std::string_view stored;
};

/// Returns all names; of several rows that fit, the first counts.
[[nodiscard]] std::span<const GgufRenaming> gguf_renamings();

}  // namespace millrace::test
