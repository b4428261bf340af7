#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/json.h"
#include "server/openai/choice_delta.h"
#include "server/openai/error.h"

/// Writes responses: whole ones and the chunks of a stream, as OpenAI defines them.
namespace millrace::server::openai {

enum class ResponseKind : uint8_t { kCompletion, kChat };

/// Members that all parts of one response share.
struct ResponseInfo {
  ResponseKind kind = ResponseKind::kCompletion;
  std::string id;         ///< "cmpl-…", "chatcmpl-…"
  int64_t created_s = 0;  ///< since the Unix epoch
  std::string model;
  std::string fingerprint;
  bool token_ids = false;  ///< the response holds token ids too
};

/// Counts the tokens of a prediction that were computed ahead, by whether they were drawn.
struct PredictionUsage {
  uint64_t accepted = 0;
  uint64_t rejected = 0;
};

struct Usage {
  uint64_t prompt_tokens = 0;
  uint64_t completion_tokens = 0;
  uint64_t cached_tokens = 0;
  std::optional<uint64_t> reasoning_tokens;    ///< part of completion_tokens; nothing where reasoning is not separated
  std::optional<PredictionUsage> predictions;  ///< nothing without a prediction
};

/// One choice, as the writers take it.
struct ChoiceView {
  uint32_t index = 0;
  const ChoiceDelta& content;
  const TokenizedPrompt& prompt;
};

[[nodiscard]] std::string_view to_string(sched::FinishReason reason);

/// Appends the body of a response that is not streamed.
void append_response(std::string& out, const ResponseInfo& info, const ChoiceOptions& options,
                     std::span<const ChoiceView> choices, const Usage& usage);

/// Writes the events of one stream ("data: {…}\n\n"). The head that all chunks share is rendered once.
class ChunkWriter {
 public:
  /// With `usage_member` chunks carry "usage": null, or the numbers with `continuous_usage`.
  ChunkWriter(const ResponseInfo& info, const ChoiceOptions& options, bool usage_member, bool continuous_usage);

  /// Appends the events of one delta: the role chunk of the first, a content chunk, a chunk with the finish reason.
  void append_delta(std::string& out, const ChoiceView& choice, const Usage& usage) const;
  void append_usage(std::string& out, const Usage& usage) const;
  static void append_failure(std::string& out, const ApiError& error);
  static void append_done(std::string& out) { out += "data: [DONE]\n\n"; }

 private:
  void append_chunk(std::string& out, const ChoiceView& choice, const Usage& usage, bool role, bool finish) const;
  /// `prompt` holds a chat's token ids in the chunk that carries them.
  void append_tail(std::string& out, const Usage& usage, std::span<const TokenId> prompt) const;

  const ResponseInfo& info_;
  const ChoiceOptions& options_;
  bool usage_member_;
  bool continuous_usage_;
  std::string head_;
};

/// Writes the logprobs members; private to openai/.
void write_completion_logprobs(JsonWriter& json, const ChoiceOptions& options, std::span<const ScoredToken> tokens);
void write_chat_logprobs(JsonWriter& json, const ChoiceOptions& options, std::span<const ScoredToken> tokens);
void write_prompt_logprobs(JsonWriter& json, const text::Tokenizer& tokenizer,
                           std::span<const tensor::TokenLogprobs> tokens);
void write_usage(JsonWriter& json, const Usage& usage);

}  // namespace millrace::server::openai
