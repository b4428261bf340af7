#include "server/prompt_offsets.h"

#include <algorithm>

#include "text/tokenizer/incremental_detokenizer.h"
#include "text/unicode.h"

namespace millrace::server {
namespace {

/// Walks along the text of a prompt, and counts its code points.
class TextCursor {
 public:
  explicit TextCursor(std::string_view text) : rest_(text) {}

  [[nodiscard]] uint32_t offset() const { return offset_; }

  /// Steps over `piece`, and over white space that the tokenizer has swallowed before it. Returns false and stays where
  /// it is if the text does not go on so.
  bool step_over(std::string_view piece) {
    if (piece.empty()) return true;
    const size_t space = rest_.starts_with(piece) ? 0 : std::min(rest_.find_first_not_of(" \t\r\n"), rest_.size());
    if (!rest_.substr(space).starts_with(piece)) return false;
    advance(space + piece.size());
    return true;
  }
  /// Steps over as many code points as `piece` has, since a normalizer may have changed them.
  void step_along(std::string_view piece) {
    size_t left = text::count_code_points(piece);
    size_t bytes = 0;
    for (; left > 0 && bytes < rest_.size(); --left) {
      do ++bytes;
      while (bytes < rest_.size() && (static_cast<unsigned char>(rest_[bytes]) & 0xc0) == 0x80);
    }
    advance(bytes);
  }

 private:
  void advance(size_t bytes) {
    offset_ += static_cast<uint32_t>(text::count_code_points(rest_.substr(0, bytes)));
    rest_.remove_prefix(bytes);
  }

  std::string_view rest_;
  uint32_t offset_ = 0;
};

/// Steps over the text of an ordinary token. Some tokenizers put a space before the word that follows a special token.
void step_over_token(TextCursor& cursor, std::string_view piece) {
  if (cursor.step_over(piece)) return;
  if (piece.starts_with(' ') && cursor.step_over(piece.substr(1))) return;
  cursor.step_along(piece);
}

}  // namespace

size_t count_added_start(const text::Tokenizer& tokenizer, const std::vector<TokenId>& ids) {
  const std::vector<TokenId> added = tokenizer.encode("", true);
  if (added.size() > ids.size()) return 0;
  for (size_t count = added.size(); count > 0; --count) {
    const auto middle = added.begin() + static_cast<std::ptrdiff_t>(count);
    if (std::equal(added.begin(), middle, ids.begin()) &&
        std::equal(middle, added.end(), ids.end() - (added.end() - middle)))
      return count;
  }
  return 0;
}

std::vector<uint32_t> prompt_offsets(const ChoiceOptions& options, const TokenizedPrompt& prompt) {
  text::IncrementalDetokenizer detokenizer(options.tokenizer, options.skip_special_tokens);
  TextCursor cursor(prompt.text);
  std::vector<uint32_t> offsets;
  offsets.reserve(prompt.ids.size());
  for (size_t i = 0; i < prompt.ids.size(); ++i) {
    const TokenId id = prompt.ids[i];
    step_over_token(cursor, detokenizer.settle_before(id));
    offsets.push_back(cursor.offset());
    const std::string piece = detokenizer.push(id);
    const bool is_skipped = options.skip_special_tokens && options.tokenizer->is_special(id);
    if (!is_skipped) {
      step_over_token(cursor, piece);
    } else if (prompt.given_from && i >= *prompt.given_from) {
      (void)cursor.step_over(options.tokenizer->id_to_token(id));
    }
  }
  return offsets;
}

}  // namespace millrace::server
