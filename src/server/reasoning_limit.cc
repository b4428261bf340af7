#include "server/reasoning_limit.h"

#include <string>
#include <utility>

#include "grammar/vocabulary.h"
#include "text/tool_calls/output_parser.h"
#include "text/tool_calls/partial_match.h"

namespace millrace::server {
namespace {

using LimitPtr = std::shared_ptr<const sched::ReasoningLimit>;

/// Returns whether the tokens spell the text, as the vocabulary knows them.
bool spell(const std::vector<TokenId>& tokens, std::string_view text, const grammar::Vocabulary& vocabulary) {
  std::string spelled;
  for (const TokenId token : tokens) {
    if (token >= 0 && std::cmp_less(token, vocabulary.size())) spelled += vocabulary.text_of(token);
  }
  return spelled.find(text) != std::string::npos;
}

}  // namespace

openai::ApiResult<LimitPtr> make_reasoning_limit(const openai::ChatRequest& request, const text::OutputFormat& format,
                                                 const OutputConstraint& constraint, const text::Tokenizer& tokenizer,
                                                 GrammarCache& grammars) {
  const std::optional<openai::ThinkingBudget>& budget = request.thinking_budget;
  // What is continued has no reasoning to come, unless it breaks off within some.
  const bool is_past_reasoning = request.conversation.continue_final_message && !format.begins_in_reasoning;
  if (!budget || is_past_reasoning) return LimitPtr();
  if (constraint.reasoning == ReasoningMode::kNone || format.response_template != nullptr) {
    if (budget->is_wish) return LimitPtr();
    return openai::bad_request(budget->field,
                               "{}: found {}, but the server knows no tags between which this model reasons, so it "
                               "cannot end the reasoning (--reasoning-parser)",
                               budget->field, budget->tokens);
  }
  const text::ReasoningRow& row = text::row_of(constraint.reasoning_format);
  auto limit = std::make_shared<sched::ReasoningLimit>();
  limit->max_tokens = budget->tokens;
  limit->begins_inside = constraint.reasoning == ReasoningMode::kOpened;
  limit->start = text::without_space(row.start);
  limit->end = row.end;
  limit->early_end = text::without_space(text::early_end_of_reasoning(format));
  limit->end_tokens = tokenizer.encode(row.end, false);
  limit->vocabulary = grammars.tag_vocabulary();
  if (spell(limit->end_tokens, row.end, *limit->vocabulary)) return LimitPtr(std::move(limit));
  if (budget->is_wish) return LimitPtr();
  return openai::bad_request(budget->field, "{}: no tokens of this model spell '{}', which would end the reasoning",
                             budget->field, row.end);
}

}  // namespace millrace::server
