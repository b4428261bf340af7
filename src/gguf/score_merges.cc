#include "gguf/score_merges.h"

#include <algorithm>
#include <unordered_set>

namespace millrace::gguf {
namespace {

struct ScoredMerge {
  std::string_view left;
  std::string_view right;
  double score = 0;
  size_t position = 0;  ///< in the order of the pieces
};

bool begins_character(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0u) != 0x80;
}

}  // namespace

std::vector<std::pair<std::string_view, std::string_view>> merges_by_score(std::span<const ScoredPiece> pieces) {
  std::unordered_set<std::string_view> known;
  for (const ScoredPiece& piece : pieces) known.insert(piece.text);
  std::vector<ScoredMerge> merges;
  for (const ScoredPiece& piece : pieces) {
    for (size_t cut = 1; cut < piece.text.size(); ++cut) {
      if (!begins_character(piece.text[cut])) continue;
      const std::string_view left = piece.text.substr(0, cut);
      const std::string_view right = piece.text.substr(cut);
      if (known.contains(left) && known.contains(right)) merges.push_back({left, right, piece.score, merges.size()});
    }
  }
  // The merge with the longer left part is the first where several give one piece, as in a run of equal characters.
  std::ranges::sort(merges, [](const ScoredMerge& one, const ScoredMerge& other) {
    if (one.score != other.score) return one.score > other.score;
    if (one.left.size() != other.left.size()) return one.left.size() > other.left.size();
    return one.position < other.position;
  });
  std::vector<std::pair<std::string_view, std::string_view>> ordered;
  ordered.reserve(merges.size());
  for (const ScoredMerge& merge : merges) ordered.emplace_back(merge.left, merge.right);
  return ordered;
}

}  // namespace millrace::gguf
