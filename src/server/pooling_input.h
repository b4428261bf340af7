#pragma once

#include <string>
#include <vector>

#include "server/input_processor.h"
#include "server/openai/pooling_request.h"
#include "server/service.h"

namespace millrace::server {

struct PoolingSpec;

/// Turns parsed requests into specs. Plain code without side effects. Owned by Api. Thread-safe.
class PoolingInput {
 public:
  /// All arguments outlive the object. `service.pooling` is not null.
  PoolingInput(const ServerOptions& options, const Service& service, const InputProcessor& input_processor)
      : options_(options), service_(service), input_processor_(input_processor) {}

  /// Returns one engine request per input. `header_id` becomes part of the id where the request has no request_id.
  [[nodiscard]] openai::ApiResult<PoolingSpec> prepare(const openai::EmbeddingRequest& request,
                                                       const std::string& header_id) const;
  /// Returns one engine request per pair for a model that scores pairs; else one per query, then one per document.
  [[nodiscard]] openai::ApiResult<PoolingSpec> prepare(const openai::PairRequest& request, std::string_view id_prefix,
                                                       const std::string& header_id) const;
  [[nodiscard]] openai::RequestLimits limits() const { return input_processor_.limits(); }

 private:
  /// The field of a text, and its position among several.
  struct Label {
    std::string_view param;
    size_t index = 0;
    size_t count = 1;
    [[nodiscard]] std::string name() const;
  };
  [[nodiscard]] openai::ApiResult<PoolingSpec> begin(const openai::PoolingRequest& request, std::string_view id_prefix,
                                                     const std::string& header_id) const;
  /// The tokens of a text or of a pair.
  struct Prompt {
    std::vector<TokenId> ids;
    size_t second_text = 0;  ///< the first token of type 1, where the tokenizer gives a pair's texts types; 0: none
  };
  /// Adds an engine request for a prompt, cut as the request says.
  [[nodiscard]] std::optional<openai::ApiError> add(const openai::PoolingRequest& request, Prompt prompt,
                                                    const Label& label, PoolingSpec& spec) const;
  [[nodiscard]] std::vector<TokenId> encode(const openai::PoolingRequest& request, const std::string& text) const;
  [[nodiscard]] Prompt encode_pair(const openai::PairRequest& request, size_t pair) const;
  /// Cuts a prompt to the request's truncate_prompt_tokens, and keeps the special tokens at both ends of a text.
  void truncate(const openai::PoolingRequest& request, Prompt& prompt) const;
  [[nodiscard]] std::string document_of(const openai::PairRequest& request, size_t pair) const;

  const ServerOptions& options_;
  const Service& service_;
  const InputProcessor& input_processor_;
};

}  // namespace millrace::server
