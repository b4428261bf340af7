#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "support/temporary_folder.h"

namespace millrace::test {

/// ggml's numbers of the types of blocks.
enum class BlockType : uint32_t {
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ2K = 10,
  kQ3K = 11,
  kQ4K = 12,
  kQ5K = 13,
  kQ6K = 14,
  kIq4Nl = 20,
  kIq4Xs = 23,
  kMxfp4 = 39,
  kNvfp4 = 40,
};

/// The types of a model's matrices, as a quantizing program chooses them by their part.
struct GgufMix {
  const char* name;
  BlockType query;
  BlockType key;
  BlockType value;
  BlockType output;
  BlockType gate;
  BlockType up;
  BlockType down;
  BlockType head;
};

/// Returns mixes of published files, and others in which neighbours differ.
[[nodiscard]] std::vector<GgufMix> gguf_mixes();

/// A random model of Llama's or Mixtral's block in a GGUF file, and the same values there as F32. It has two layers,
/// 256 hidden values, a vocabulary of 512 and, if sparse, eight experts of which a row chooses two.
class GgufTwins {
 public:
  GgufTwins(const GgufMix& mix, bool is_sparse, uint32_t seed);
  [[nodiscard]] std::filesystem::path stored() const { return stored_.path() / "m.gguf"; }
  [[nodiscard]] std::filesystem::path plain() const { return plain_.path() / "m.gguf"; }

 private:
  TemporaryFolder stored_;
  TemporaryFolder plain_;
};

}  // namespace millrace::test
