#pragma once

#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "grammar/grammar.h"
#include "server/output_constraint.h"
#include "text/tokenizer/tokenizer.h"

namespace millrace::server {

/// Compiles the grammars of requests over the model's vocabulary, and keeps the last used: the requests of one
/// application share theirs. Owned by Api. Thread-safe.
class GrammarCache {
 public:
  /// `vocab_size` counts the ids that can be drawn; `stop_token_ids` end an output.
  GrammarCache(std::shared_ptr<const text::Tokenizer> tokenizer, uint32_t vocab_size,
               std::vector<TokenId> stop_token_ids)
      : tokenizer_(std::move(tokenizer)), vocab_size_(vocab_size), stop_token_ids_(std::move(stop_token_ids)) {}

  /// Returns the grammar of a constrained output, after microseconds to tenths of a second. Error 400: the response
  /// format, or the schema of a strict tool, cannot be compiled, or exceeds a bound.
  [[nodiscard]] openai::ApiResult<std::shared_ptr<const grammar::Grammar>> get_or_compile(
      const OutputConstraint& constraint);
  /// Returns what each token adds to an output's text, tags of reasoning and tool calls included.
  [[nodiscard]] std::shared_ptr<const grammar::Vocabulary> tag_vocabulary() { return vocabularies().with_tags; }

 private:
  struct Entry {
    std::string key;
    std::shared_ptr<const grammar::Grammar> grammar;
  };
  /// What each token adds to an output's text.
  struct TokenVocabularies {
    std::shared_ptr<const grammar::Vocabulary> plain;      ///< special tokens add nothing
    std::shared_ptr<const grammar::Vocabulary> with_tags;  ///< tags of reasoning and tool calls add their spelling
  };
  static constexpr size_t kMaxEntries = 32;
  /// What all kept grammars may take. The newest is kept whatever it takes.
  static constexpr size_t kMaxBytes = size_t{256} << 20;

  [[nodiscard]] std::shared_ptr<const grammar::Grammar> find(const std::string& key);
  [[nodiscard]] openai::ApiResult<std::shared_ptr<const grammar::Grammar>> compile(const OutputConstraint& constraint,
                                                                                   SchemaEnforcement enforcement);
  [[nodiscard]] const TokenVocabularies& vocabularies();

  const std::shared_ptr<const text::Tokenizer> tokenizer_;
  const uint32_t vocab_size_;
  const std::vector<TokenId> stop_token_ids_;
  std::mutex mutex_;
  std::list<Entry> entries_;  // guarded by mutex_; the last used first
  std::once_flag vocabularies_once_;
  TokenVocabularies vocabularies_;  // made when they are asked for first
};

}  // namespace millrace::server
