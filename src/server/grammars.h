#pragma once

#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "grammar/grammar.h"
#include "server/answer_grammar.h"
#include "text/tokenizer.h"

namespace millrace::server {

/// The grammars of requests over the model's vocabulary; the last used are kept, since requests of one application have
/// the same. Thread-safe.
class Grammars {
 public:
  /// `vocab_size`: drawable ids. `ends`: ids that end an answer.
  Grammars(std::shared_ptr<const text::Tokenizer> tokenizer, uint32_t vocab_size, std::vector<TokenId> ends)
      : tokenizer_(std::move(tokenizer)), vocab_size_(vocab_size), ends_(std::move(ends)) {}

  /// Of an answer that is not free. 400: what is wrong with its form, or with strict tools. Takes from microseconds to
  /// tenths of a second.
  [[nodiscard]] openai::ApiResult<std::shared_ptr<const grammar::Grammar>> grammar_of(const HeldAnswer& answer);

 private:
  struct Entry {
    std::string key;
    std::shared_ptr<const grammar::Grammar> grammar;
  };
  /// What tokens add to an answer's text.
  struct Vocabularies {
    std::shared_ptr<const grammar::Vocabulary> plain;      ///< special tokens nothing
    std::shared_ptr<const grammar::Vocabulary> with_tags;  ///< those that are tags of reasoning or calls their spelling
  };
  static constexpr size_t kMostKept = 32;

  [[nodiscard]] std::shared_ptr<const grammar::Grammar> find(const std::string& key);
  [[nodiscard]] openai::ApiResult<std::shared_ptr<const grammar::Grammar>> compile(const HeldAnswer& answer,
                                                                                   HeldArguments held);
  [[nodiscard]] const Vocabularies& vocabularies();

  const std::shared_ptr<const text::Tokenizer> tokenizer_;
  const uint32_t vocab_size_;
  const std::vector<TokenId> ends_;
  std::mutex mutex_;
  std::list<Entry> kept_;  // guarded by mutex_; the last used first
  std::once_flag vocabularies_once_;
  Vocabularies vocabularies_;  // made when they are asked for first
};

}  // namespace millrace::server
