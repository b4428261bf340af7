#include "server/grammars.h"

#include <algorithm>

#include "grammar/ebnf.h"
#include "grammar/json_schema.h"
#include "grammar/pattern.h"
#include "text/answer_parser.h"

namespace millrace::server {
namespace {

using grammar::CharSet;
using grammar::Definition;
using grammar::ExpressionPtr;
using openai::AnswerForm;

std::string key_of(const AnswerForm& form, FormStart start) {
  std::string key{static_cast<char>(form.notation), static_cast<char>(start)};
  for (const std::string& text : form.texts) {
    key += std::to_string(text.size());
    key += ':';
    key += text;
  }
  return key;
}

/// Adds the form's rules; what a text has to match.
Result<ExpressionPtr> read_form(const AnswerForm& form, Definition& definition) {
  switch (form.notation) {
    case AnswerForm::Notation::kJsonObject: return grammar::any_json_object(definition);
    case AnswerForm::Notation::kJsonSchema: return grammar::read_json_schema(form.texts[0], definition);
    case AnswerForm::Notation::kRegex: return grammar::read_pattern(form.texts[0]);
    case AnswerForm::Notation::kGrammar: return grammar::read_ebnf(form.texts[0], definition);
    case AnswerForm::Notation::kChoice: break;
  }
  std::vector<ExpressionPtr> choices;
  for (const std::string& text : form.texts) choices.push_back(grammar::literal(text));
  return grammar::choice(std::move(choices));
}

/// Any text up to the first `tag`, and it: a rule per part of the tag that has come. The tag's first character comes
/// nowhere else in it.
ExpressionPtr up_to(std::string_view tag, Definition& definition) {
  std::vector<grammar::RuleIndex> behind;  // so many characters of the tag
  for (size_t i = 0; i < tag.size(); ++i) behind.push_back(definition.add("reasoning"));
  const auto first = static_cast<char32_t>(tag[0]);
  for (size_t i = 0; i < tag.size(); ++i) {
    const auto next = static_cast<char32_t>(tag[i]);
    CharSet others(0, CharSet::kLast);
    others = others.without(CharSet(first)).without(CharSet(next));
    std::vector<ExpressionPtr> ways;
    ways.push_back(grammar::sequence({grammar::one_of(CharSet(next)),
                                      i + 1 == tag.size() ? grammar::literal("") : grammar::reference(behind[i + 1])}));
    if (next != first)
      ways.push_back(grammar::sequence({grammar::one_of(CharSet(first)), grammar::reference(behind[1])}));
    ways.push_back(grammar::sequence({grammar::one_of(std::move(others)), grammar::reference(behind[0])}));
    definition.rules[behind[i]].expression = grammar::choice(std::move(ways));
  }
  return grammar::reference(behind[0]);
}

ExpressionPtr with_start(ExpressionPtr form, FormStart start, Definition& definition) {
  if (start == FormStart::kPlain) return form;
  const ExpressionPtr reasoning = up_to(text::kEndOfReasoning, definition);
  CharSet blanks(U' ');
  blanks.add(U'\n', U'\n');
  ExpressionPtr gap = grammar::repeat(grammar::one_of(std::move(blanks)), 0, 8);
  if (start == FormStart::kBegunReasoning) return grammar::sequence({reasoning, std::move(gap), std::move(form)});
  ExpressionPtr reasoned =
      grammar::sequence({grammar::literal(std::string(text::kBeginOfReasoning)), reasoning, std::move(gap)});
  return grammar::sequence({grammar::optional(std::move(reasoned)), std::move(form)});
}

}  // namespace

std::shared_ptr<const grammar::Vocabulary> Grammars::vocabulary() {
  std::call_once(vocabulary_once_, [this] {
    std::vector<std::string> texts(vocab_size_);
    const auto known = std::min<size_t>(vocab_size_, tokenizer_->vocab_size());
    for (size_t id = 0; id < known; ++id) {
      const auto token = static_cast<TokenId>(id);
      const std::string_view spelling = tokenizer_->id_to_token(token);
      const bool is_tag = spelling == text::kBeginOfReasoning || spelling == text::kEndOfReasoning;
      if (!tokenizer_->is_special(token)) texts[id] = tokenizer_->token_bytes(token);
      if (is_tag) texts[id] = spelling;
    }
    for (const TokenId end : ends_) {
      if (end >= 0 && static_cast<size_t>(end) < texts.size()) texts[static_cast<size_t>(end)].clear();
    }
    vocabulary_ = std::make_shared<const grammar::Vocabulary>(texts);
  });
  return vocabulary_;
}

std::shared_ptr<const grammar::Grammar> Grammars::find(const std::string& key) {
  const std::lock_guard lock(mutex_);
  const auto found = std::ranges::find(kept_, key, &Entry::key);
  if (found == kept_.end()) return nullptr;
  kept_.splice(kept_.begin(), kept_, found);
  return found->grammar;
}

Result<std::shared_ptr<const grammar::Grammar>> Grammars::grammar_of(const AnswerForm& form, FormStart start) {
  std::string key = key_of(form, start);
  if (auto known = find(key)) return known;
  Definition definition;
  definition.add("the answer");
  auto expression = read_form(form, definition);
  if (expression.has_error()) return expression.error();
  ExpressionPtr answer = with_start(std::move(*expression), start, definition);
  definition.rules[0].expression = std::move(answer);
  auto compiled = grammar::Grammar::compile(definition, vocabulary(), ends_);
  if (compiled.has_error()) return compiled.error();
  const std::lock_guard lock(mutex_);
  kept_.push_front({std::move(key), *compiled});
  if (kept_.size() > kMostKept) kept_.pop_back();
  return *compiled;
}

}  // namespace millrace::server
