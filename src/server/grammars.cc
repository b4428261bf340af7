#include "server/grammars.h"

#include <algorithm>

#include "text/answer_parser.h"

namespace millrace::server {

using openai::ApiResult;
using openai::bad_request;

namespace {

/// Special tokens of some models that their answers are taken apart by.
bool is_tag(std::string_view spelling) {
  return spelling == text::kBeginOfReasoning || spelling == text::kEndOfReasoning || text::is_call_tag(spelling);
}

}  // namespace

const Grammars::Vocabularies& Grammars::vocabularies() {
  std::call_once(vocabularies_once_, [this] {
    std::vector<std::string> texts(vocab_size_);
    std::vector<TokenId> special_tags;
    const auto known = std::min<size_t>(vocab_size_, tokenizer_->vocab_size());
    for (size_t id = 0; id < known; ++id) {
      const auto token = static_cast<TokenId>(id);
      if (!tokenizer_->is_special(token)) {
        texts[id] = tokenizer_->token_bytes(token);
      } else if (is_tag(tokenizer_->id_to_token(token))) {
        special_tags.push_back(token);
      }
    }
    const auto without_ends = [this](std::vector<std::string> all) {
      for (const TokenId end : ends_) {
        if (end >= 0 && static_cast<size_t>(end) < all.size()) all[static_cast<size_t>(end)].clear();
      }
      return std::make_shared<const grammar::Vocabulary>(all);
    };
    vocabularies_.plain = without_ends(texts);
    vocabularies_.with_tags = vocabularies_.plain;
    if (special_tags.empty()) return;
    for (const TokenId tag : special_tags) texts[static_cast<size_t>(tag)] = tokenizer_->id_to_token(tag);
    vocabularies_.with_tags = without_ends(std::move(texts));
  });
  return vocabularies_;
}

std::shared_ptr<const grammar::Grammar> Grammars::find(const std::string& key) {
  const std::lock_guard lock(mutex_);
  const auto found = std::ranges::find(kept_, key, &Entry::key);
  if (found == kept_.end()) return nullptr;
  kept_.splice(kept_.begin(), kept_, found);
  return found->grammar;
}

ApiResult<std::shared_ptr<const grammar::Grammar>> Grammars::grammar_of(const HeldAnswer& answer) {
  std::string key = answer.key();
  if (auto known = find(key)) return known;
  auto compiled = compile(answer, HeldArguments::kAll);
  const bool has_loose = answer.calls && !std::ranges::all_of(answer.calls->tools, &openai::Tool::is_strict);
  if (compiled.has_error() && has_loose) compiled = compile(answer, HeldArguments::kStrict);
  if (compiled.has_error()) return compiled.error();
  const std::lock_guard lock(mutex_);
  kept_.push_front({std::move(key), *compiled});
  if (kept_.size() > kMostKept) kept_.pop_back();
  return *compiled;
}

ApiResult<std::shared_ptr<const grammar::Grammar>> Grammars::compile(const HeldAnswer& answer, HeldArguments held) {
  const auto definition = define(answer, held);
  if (definition.has_error()) return definition.error();
  const bool has_tags = answer.start != AnswerStart::kPlain || answer.calls;
  const Vocabularies& all = vocabularies();
  auto compiled = grammar::Grammar::compile(*definition, has_tags ? all.with_tags : all.plain, ends_);
  if (compiled.has_value()) return std::move(*compiled);
  const std::string& message = compiled.error().message;
  if (answer.form && answer.calls) return bad_request("tools", "tools and {}: {}", answer.form->name, message);
  if (answer.form) return bad_request(answer.form->field, "{}: {}", answer.form->name, message);
  return bad_request("tools", "tools: {}", message);
}

}  // namespace millrace::server
