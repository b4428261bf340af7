#include "server/grammar_cache.h"

#include <algorithm>

#include "server/constraint_source.h"
#include "text/tool_calls/reasoning_formats.h"
#include "text/tool_calls/tool_formats.h"

namespace millrace::server {

using openai::ApiResult;
using openai::bad_request;

namespace {

/// Returns whether the added token is a tag that OutputParser splits outputs at. Many vocabularies do not mark their
/// tags as special, so that decoders keep them.
bool is_tag(const text::Tokenizer& tokenizer, TokenId token) {
  const std::string_view spelling = tokenizer.id_to_token(token);
  const auto is_between = [spelling](std::string_view open, std::string_view close) {
    return spelling.starts_with(open) && spelling.ends_with(close);
  };
  const bool is_markup = is_between("<", ">") || is_between("[", "]") || is_between("｜", "｜");
  return (is_markup || tokenizer.is_special(token)) &&
         (text::is_reasoning_tag(spelling) || text::is_tool_call_tag(spelling));
}

}  // namespace

const GrammarCache::TokenVocabularies& GrammarCache::vocabularies() {
  std::call_once(vocabularies_once_, [this] {
    std::vector<std::string> texts(vocab_size_);
    std::vector<TokenId> tags;
    std::vector<TokenId> special_tags;
    const auto known = std::min<size_t>(vocab_size_, tokenizer_->vocab_size());
    for (size_t id = 0; id < known; ++id) {
      const auto token = static_cast<TokenId>(id);
      const bool is_special = tokenizer_->is_special(token);
      if (!is_special) texts[id] = tokenizer_->token_bytes(token);
      if (!tokenizer_->is_added(token) || !is_tag(*tokenizer_, token)) continue;
      tags.push_back(token);
      if (is_special) special_tags.push_back(token);
    }
    const auto without_stop_tokens = [&](std::vector<std::string> all) {
      for (const TokenId end : stop_token_ids_) {
        if (end >= 0 && static_cast<size_t>(end) < all.size()) all[static_cast<size_t>(end)].clear();
      }
      return std::make_shared<const grammar::Vocabulary>(all, tags);
    };
    vocabularies_.plain = without_stop_tokens(texts);
    vocabularies_.with_tags = vocabularies_.plain;
    if (special_tags.empty()) return;
    for (const TokenId tag : special_tags) texts[static_cast<size_t>(tag)] = tokenizer_->id_to_token(tag);
    vocabularies_.with_tags = without_stop_tokens(std::move(texts));
  });
  return vocabularies_;
}

std::shared_ptr<const grammar::Grammar> GrammarCache::find(const std::string& key) {
  const std::lock_guard lock(mutex_);
  const auto found = std::ranges::find(entries_, key, &Entry::key);
  if (found == entries_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, found);
  return found->grammar;
}

ApiResult<std::shared_ptr<const grammar::Grammar>> GrammarCache::get_or_compile(const OutputConstraint& constraint) {
  std::string key = encode_constraint(constraint);
  if (auto known = find(key)) return known;
  auto compiled = compile(constraint, SchemaEnforcement::kAll);
  const bool has_loose = constraint.calls && !std::ranges::all_of(constraint.calls->tools, &openai::Tool::is_strict);
  if (compiled.has_error() && has_loose) compiled = compile(constraint, SchemaEnforcement::kStrict);
  if (compiled.has_error()) return compiled.error();
  const std::lock_guard lock(mutex_);
  entries_.push_front({std::move(key), *compiled});
  size_t bytes = 0;
  size_t kept = 0;
  for (const Entry& entry : entries_) {
    bytes += entry.grammar->bytes();
    if (kept > 0 && (kept == kMaxEntries || bytes > kMaxBytes)) break;
    ++kept;
  }
  entries_.resize(kept);
  return *compiled;
}

ApiResult<std::shared_ptr<const grammar::Grammar>> GrammarCache::compile(const OutputConstraint& constraint,
                                                                         SchemaEnforcement enforcement) {
  const auto definition = build_grammar(constraint, enforcement);
  if (definition.has_error()) return definition.error();
  const bool has_tags = constraint.reasoning != ReasoningMode::kNone || constraint.calls;
  const TokenVocabularies& all = vocabularies();
  auto compiled = grammar::Grammar::compile(*definition, has_tags ? all.with_tags : all.plain, stop_token_ids_);
  if (compiled.has_value()) return std::move(*compiled);
  const std::string& message = compiled.error().message;
  if (constraint.response_format && constraint.calls)
    return bad_request("tools", "tools and {}: {}", constraint.response_format->name, message);
  if (constraint.response_format)
    return bad_request(constraint.response_format->field, "{}: {}", constraint.response_format->name, message);
  return bad_request("tools", "tools: {}", message);
}

}  // namespace millrace::server
