#pragma once

#include <optional>
#include <vector>

#include "grammar/expression.h"
#include "grammar/text_language.h"

namespace millrace::grammar {

/// Returns the states of a deterministic automaton over characters for an expression without references. Returns
/// nothing if it takes more than `max_states`.
[[nodiscard]] std::optional<std::vector<TextLanguage::State>> determinized(const Expression& expression,
                                                                           size_t max_states, ReadWork& work);

}  // namespace millrace::grammar
