#pragma once

#include <span>
#include <string>
#include <string_view>

#include "base/json.h"
#include "server/openai/response_writer.h"

/// Writes responses: whole ones and the chunks of a stream, as OpenAI defines them.
namespace millrace::server::openai {

[[nodiscard]] std::string_view to_string(sched::FinishReason reason);

/// How the chunks of a stream report usage.
struct ChunkUsage {
  bool at_end = false;      ///< the last chunk has the numbers, the others "usage": null
  bool continuous = false;  ///< every chunk has the numbers so far
};

/// Writes completions and chat completions, whole or as events ("data: {…}\n\n"). The head that all chunks share is
/// rendered once.
class CompletionWriter final : public ResponseWriter {
 public:
  CompletionWriter(const ResponseInfo& info, const ChoiceOptions& options, ChunkUsage usage);

  [[nodiscard]] bool needs_running_usage() const override { return chunk_usage_.continuous; }
  /// Appends the role chunk of the first delta, a content chunk, a chunk with the finish reason.
  void append_delta(std::string& out, const ChoiceView& choice, const Usage& usage) override;
  void append_keep_alive(std::string& out) override { out += ":\n\n"; }
  void append_end(std::string& out, const Usage& usage) override;
  void append_failure(std::string& out, const ApiError& error) override;
  void append_response(std::string& out, std::span<const ChoiceView> choices, const Usage& usage) override;

 private:
  void append_chunk(std::string& out, const ChoiceView& choice, const Usage& usage, bool role, bool finish) const;
  /// `prompt` holds a chat's token ids in the chunk that carries them.
  void append_tail(std::string& out, const Usage& usage, std::span<const TokenId> prompt) const;

  const ResponseInfo& info_;
  const ChoiceOptions& options_;
  ChunkUsage chunk_usage_;
  std::string head_;
};

/// Writes the logprobs members.
void write_completion_logprobs(JsonWriter& json, const ChoiceOptions& options, std::span<const ScoredToken> tokens);
void write_chat_logprobs(JsonWriter& json, const ChoiceOptions& options, std::span<const ScoredToken> tokens);
/// Writes the array that write_chat_logprobs has as "content".
void write_token_logprobs(JsonWriter& json, const ChoiceOptions& options, std::span<const ScoredToken> tokens);
void write_prompt_logprobs(JsonWriter& json, const text::Tokenizer& tokenizer,
                           std::span<const tensor::TokenLogprobs> tokens);
void write_usage(JsonWriter& json, const Usage& usage);

}  // namespace millrace::server::openai
