#pragma once

#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace millrace::gguf {

/// A piece of a SentencePiece vocabulary that merges can give.
struct ScoredPiece {
  std::string_view text;  ///< valid UTF-8
  double score = 0;       ///< finite
};

/// Returns the merges of a BPE whose best merge is the one with the highest score: each split of a piece into two
/// others, by falling score.
[[nodiscard]] std::vector<std::pair<std::string_view, std::string_view>> merges_by_score(
    std::span<const ScoredPiece> pieces);

}  // namespace millrace::gguf
