#pragma once

#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/result.h"
#include "grammar/grammar.h"
#include "server/openai/request.h"
#include "text/tokenizer.h"

namespace millrace::server {

/// How an answer that is held to a form begins.
enum class FormStart : uint8_t {
  kPlain,           ///< at once
  kMayReason,       ///< <think>…</think> may come first
  kBegunReasoning,  ///< the prompt has opened <think>
};

/// The grammars of requests over the model's vocabulary; the last used are kept, since requests of one application have
/// the same. Thread-safe.
class Grammars {
 public:
  /// `vocab_size`: drawable ids. `ends`: ids that end an answer.
  Grammars(std::shared_ptr<const text::Tokenizer> tokenizer, uint32_t vocab_size, std::vector<TokenId> ends)
      : tokenizer_(std::move(tokenizer)), vocab_size_(vocab_size), ends_(std::move(ends)) {}

  /// kInvalidArgument: what is wrong with the form. Takes from microseconds to tenths of a second.
  [[nodiscard]] Result<std::shared_ptr<const grammar::Grammar>> grammar_of(const openai::AnswerForm& form,
                                                                           FormStart start);

 private:
  struct Entry {
    std::string key;
    std::shared_ptr<const grammar::Grammar> grammar;
  };
  static constexpr size_t kMostKept = 32;

  [[nodiscard]] std::shared_ptr<const grammar::Grammar> find(const std::string& key);
  [[nodiscard]] std::shared_ptr<const grammar::Vocabulary> vocabulary();

  const std::shared_ptr<const text::Tokenizer> tokenizer_;
  const uint32_t vocab_size_;
  const std::vector<TokenId> ends_;
  std::mutex mutex_;
  std::list<Entry> kept_;  // guarded by mutex_; the last used first
  std::once_flag vocabulary_once_;
  std::shared_ptr<const grammar::Vocabulary> vocabulary_;  // made when it is asked for first
};

}  // namespace millrace::server
