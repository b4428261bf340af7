#include "golden_test/feeding.h"

#include <algorithm>
#include <cstring>

namespace millrace::test {

Logits run_alone(TestPipeline& pipeline, const Sequences& sequences, size_t chunk, uint32_t seed) {
  Logits logits;
  for (const std::vector<TokenId>& tokens : sequences) {
    pipeline.start({static_cast<int32_t>(tokens.size())}, seed);
    std::vector<float>& own = logits.emplace_back();
    for (size_t begin = 0; begin < tokens.size(); begin += chunk) {
      const size_t end = std::min(begin + chunk, tokens.size());
      const auto part = pipeline.run({{.tokens = {tokens.begin() + static_cast<std::ptrdiff_t>(begin),
                                                  tokens.begin() + static_cast<std::ptrdiff_t>(end)},
                                       .prefix = static_cast<int32_t>(begin)}});
      own.insert(own.end(), part.begin(), part.end());
    }
  }
  return logits;
}

Logits run_batched(TestPipeline& pipeline, const Sequences& sequences, size_t chunk, uint32_t seed) {
  std::vector<int32_t> room;
  for (const auto& tokens : sequences) room.push_back(static_cast<int32_t>(tokens.size()));
  pipeline.start(room, seed);
  const auto vocab = static_cast<size_t>(pipeline.stage(0).config().vocab_size);
  Logits logits(sequences.size());
  std::vector<size_t> done(sequences.size());
  for (size_t turn = 0;; ++turn) {
    std::vector<Piece> pieces;
    for (size_t s = 0; s < sequences.size() && s / 3 <= turn; ++s) {
      const auto begin = sequences[s].begin() + static_cast<std::ptrdiff_t>(done[s]);
      const size_t count = std::min(chunk + s, sequences[s].size() - done[s]);
      if (count == 0) continue;
      pieces.push_back({.tokens = {begin, begin + static_cast<std::ptrdiff_t>(count)},
                        .prefix = static_cast<int32_t>(done[s]),
                        .sequence = s});
      done[s] += count;
    }
    if (pieces.empty()) return logits;
    const std::vector<float> rows = pipeline.run(pieces);
    auto from = rows.begin();
    for (const Piece& piece : pieces) {
      const auto to = from + static_cast<std::ptrdiff_t>(piece.tokens.size() * vocab);
      logits[piece.sequence].insert(logits[piece.sequence].end(), from, to);
      from = to;
    }
  }
}

bool same_bits(const Logits& left, const Logits& right) {
  return std::equal(left.begin(), left.end(), right.begin(), right.end(), [](const auto& a, const auto& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
  });
}

}  // namespace millrace::test
