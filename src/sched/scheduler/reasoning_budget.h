#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/ids.h"
#include "base/token_mask.h"
#include "sched/plan/request.h"

namespace millrace::sched {

/// Follows the reasoning of one output, and says which tokens must end it once its limit is reached. It counts every
/// token after the start tag. A character that the limit would split is completed first. Owned by its sequence, on the
/// head's thread.
class ReasoningBudget {
 public:
  explicit ReasoningBudget(std::shared_ptr<const ReasoningLimit> limit);

  /// Appends a token of the output.
  void append(TokenId token);
  /// Returns the mask of the one token that must come next. Returns null where none must, or where `allowed` lacks it.
  /// A null `allowed` has all tokens.
  [[nodiscard]] std::shared_ptr<const TokenMask> forced_mask(const TokenMask* allowed) const;
  /// Returns how many tokens may be drawn before one is forced at the earliest; SIZE_MAX where none will be.
  [[nodiscard]] size_t free_tokens() const;

 private:
  enum class Phase : uint8_t { kBefore, kInside, kAfter };
  [[nodiscard]] std::optional<TokenId> forced() const;
  /// Opens the reasoning if the text so far is its start tag.
  void look_for_start();
  void look_for_end();

  std::shared_ptr<const ReasoningLimit> limit_;
  Phase phase_;
  std::string text_;         // before the reasoning: all of it; inside: its last bytes
  uint32_t spent_ = 0;       // tokens of the reasoning
  size_t forced_count_ = 0;  // tokens of the end tag that were forced
};

}  // namespace millrace::sched
