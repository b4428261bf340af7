#pragma once

#include <span>
#include <string_view>

#include "grammar/expression.h"

namespace millrace::grammar {

/// Returns any text without one of the tags, then a tag, and what `then` has for it. A tag without an entry in `then`
/// does not occur. With `may_end` the text may also end without a tag. The text has no tags of the vocabulary except
/// those in `words`; each of these is one.
[[nodiscard]] ExpressionPtr until_tag(std::span<const std::string_view> tags, std::span<const ExpressionPtr> then,
                                      bool may_end = false, std::span<const std::string_view> words = {});

/// Returns any text without one of the tags, the first of them, and `then`. With `may_end` the text may also end
/// without a tag.
[[nodiscard]] ExpressionPtr until_tag(std::span<const std::string_view> tags, const ExpressionPtr& then,
                                      bool may_end = false, std::span<const std::string_view> words = {});

}  // namespace millrace::grammar
