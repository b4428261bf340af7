#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "base/result.h"
#include "grammar/expression.h"

namespace millrace::grammar {

/// Copies the rules of `source` that its root needs into `target`, restricted to the texts without any of the tags.
/// Returns the root's expression. The tags have at most 64 different beginnings. Fails with kInvalidArgument, and
/// leaves `target` as it was, if the result has more than `max_edges` steps between positions. Adds the steps of the
/// result to `edge_count` unless it is null.
[[nodiscard]] Result<ExpressionPtr> without_tags(const Definition& source, std::span<const std::string_view> tags,
                                                 Definition& target, size_t max_edges = 400'000,
                                                 size_t* edge_count = nullptr);

}  // namespace millrace::grammar
