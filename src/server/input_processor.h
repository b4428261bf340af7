#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "server/chat_renderer.h"
#include "server/grammar_cache.h"
#include "server/openai/request.h"
#include "server/openai/response.h"
#include "server/options.h"
#include "server/random_source.h"
#include "server/service.h"

namespace millrace::server {

struct GenerationSpec;

/// Turns parsed requests into specs. Plain code whose only side effect is drawing seeds. Owned by Api. Thread-safe.
class InputProcessor {
 public:
  InputProcessor(const ServerOptions& options, const Service& service, RandomSource& seeds, GrammarCache& grammars)
      : options_(options), service_(service), renderer_(options, service), seeds_(seeds), grammar_cache_(grammars) {}

  /// `header_id` becomes part of the response's id where the request has no request_id.
  [[nodiscard]] openai::ApiResult<GenerationSpec> prepare(openai::CompletionRequest request,
                                                          const std::string& header_id) const;
  [[nodiscard]] openai::ApiResult<GenerationSpec> prepare(openai::ChatRequest request,
                                                          const std::string& header_id) const;
  /// Returns how many tokens the prompt of a chat has, also where the context does not hold them.
  [[nodiscard]] openai::ApiResult<size_t> count_prompt_tokens(const openai::ChatRequest& request) const;
  /// Returns 404 unless `model` is empty or a name of the served one.
  [[nodiscard]] std::optional<openai::ApiError> check_model(const std::string& model) const;
  /// Returns the prompt of a chat, without the beginning of the output that tool_choice may add.
  [[nodiscard]] openai::ApiResult<std::string> render(const openai::Conversation& conversation) const;
  [[nodiscard]] openai::RequestLimits limits() const;
  /// Returns what the parts of a response share, without its id.
  [[nodiscard]] openai::ResponseInfo make_info(const openai::CommonRequest& request) const;

 private:
  /// The name of a prompt in error messages: its field, and its position among several prompts.
  struct PromptLabel {
    std::string_view param;
    std::string name;
  };
  /// Returns the prompt of a chat with the beginning of the output that tool_choice may add. Sets how the output is
  /// separated, and what restricts it.
  [[nodiscard]] openai::ApiResult<std::string> render_prompt(const text::ChatTemplate& chat_template,
                                                             const openai::ChatRequest& request,
                                                             text::OutputFormat& format,
                                                             OutputConstraint& constraint) const;
  [[nodiscard]] openai::ApiResult<GenerationSpec> finish(const openai::CommonRequest& request, GenerationSpec spec,
                                                         std::string_view prompt_param, const std::string& header_id,
                                                         const OutputConstraint& constraint) const;
  /// Refuses ids beyond the model's vocabulary, since a tokenizer may know more tokens.
  [[nodiscard]] std::optional<openai::ApiError> check_vocabulary(const std::vector<TokenId>& ids,
                                                                 const PromptLabel& label) const;
  /// Resolves max_tokens against the context.
  [[nodiscard]] openai::ApiResult<uint32_t> resolve_max_tokens(const openai::CommonRequest& request,
                                                               size_t prompt_tokens, const PromptLabel& label,
                                                               bool chat) const;
  /// Returns how many tokens of a prompt truncate_prompt_tokens leaves.
  [[nodiscard]] uint32_t max_prompt_tokens(const openai::CommonRequest& request, uint32_t default_max_tokens) const;
  void attach_prediction(const std::string& prediction, GenerationSpec& spec) const;
  [[nodiscard]] tensor::SamplingParams sampling(const openai::CommonRequest& request) const;
  /// Returns whether some of a format's tags are special tokens.
  [[nodiscard]] bool has_special_tags(text::ReasoningFormat format) const;
  void fill_options(const openai::CommonRequest& request, GenerationSpec& spec) const;

  const ServerOptions& options_;
  const Service& service_;
  const ChatRenderer renderer_;
  RandomSource& seeds_;
  GrammarCache& grammar_cache_;
};

}  // namespace millrace::server
