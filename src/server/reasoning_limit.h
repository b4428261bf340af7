#pragma once

#include <memory>

#include "sched/plan/request.h"
#include "server/grammar_cache.h"
#include "server/openai/error.h"
#include "server/openai/request.h"
#include "server/output_constraint.h"
#include "text/tokenizer/tokenizer.h"
#include "text/tool_calls/output_format.h"

namespace millrace::server {

/// Returns the bound that a chat sets on the reasoning of its outputs; null if it sets none, or if a mere wish cannot
/// be kept. Error 400: the outputs have no reasoning between tags, so that a bound has nothing to end.
[[nodiscard]] openai::ApiResult<std::shared_ptr<const sched::ReasoningLimit>> make_reasoning_limit(
    const openai::ChatRequest& request, const text::OutputFormat& format, const OutputConstraint& constraint,
    const text::Tokenizer& tokenizer, GrammarCache& grammars);

}  // namespace millrace::server
