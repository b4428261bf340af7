#pragma once

#include <string>
#include <vector>

#include "async/runtime.h"
#include "base/ids.h"
#include "load/options.h"

namespace millrace::load {

/// One prompt: token ids, or words with Options::text.
struct Prompt {
  std::vector<TokenId> ids;
  std::vector<std::string> messages;  ///< what the user and the model said in turn; the user ends
  uint32_t length = 0;                ///< ids or words
  uint32_t output_tokens = 0;         ///< max_tokens
};

/// Which prompts are sent: a pure function of the options, the index and what the model has said, so prompts are made
/// when they are due and two runs of one seed send the same ones in the same order.
class Workload {
 public:
  explicit Workload(const Options& options) : options_(options) {}

  /// `replies`: what the model has said so far in this prompt's conversation, one per turn before.
  [[nodiscard]] Prompt prompt(uint32_t index, const std::vector<std::string>& replies = {}) const;
  /// Conversations take turns; other prompts are conversations of one turn.
  [[nodiscard]] uint32_t conversation_count() const;
  /// Another prompt of the same kind, so that warming up caches nothing that is measured later (but shared prefixes).
  [[nodiscard]] Prompt warmup(uint32_t index) const;
  /// The JSON body of the request for `prompt`.
  [[nodiscard]] std::string body(const Prompt& prompt, uint32_t index, const std::string& model) const;
  /// When each request is due, after the start. [num_prompts], ascending.
  [[nodiscard]] std::vector<async::Duration> arrivals() const;

 private:
  [[nodiscard]] Prompt make(uint32_t index, uint32_t purpose, const std::vector<std::string>& replies) const;

  const Options& options_;
};

}  // namespace millrace::load
