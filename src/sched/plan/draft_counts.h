#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace millrace::sched {

/// The source of a draft.
enum class DraftSource : uint8_t {
  kHistory,     ///< it followed the same tokens earlier in the sequence
  kPrediction,  ///< the client expects it
  kGrammar,     ///< the grammar allows no other text
};
inline constexpr size_t kDraftSources = 3;
inline constexpr std::array<std::string_view, kDraftSources> kDraftSourceNames = {"ngram", "prediction", "grammar"};

/// Drafted and accepted tokens since the start, by source.
struct DraftCounts {
  std::array<uint64_t, kDraftSources> drafted{};
  std::array<uint64_t, kDraftSources> accepted{};
};

}  // namespace millrace::sched
