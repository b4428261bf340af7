#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "server/openai/request.h"

/// The requests that want vectors or scores of prompts, and their parsers.
namespace millrace::server::openai {

/// The most inputs, or pairs, of one request, as OpenAI has it.
inline constexpr size_t kMaxPoolingInputs = 2048;

/// Members that all these requests share, in addition to those of CommonRequest.
struct PoolingRequest : CommonRequest {
  PoolingRequest() { keep_prompt_start = true; }
  bool use_activation = true;  ///< normalize vectors, or apply the function of scores, as the model's files say
};

struct EmbeddingRequest : PoolingRequest {
  std::vector<Prompt> inputs;
  bool is_base64 = false;
  uint32_t dimensions = 0;  ///< 0: all
};

/// Queries and documents, scored pair by pair: one query with every document, or each with its own.
struct PairRequest : PoolingRequest {
  std::vector<std::string> queries;
  std::vector<std::string> documents;
  std::string_view query_param;      ///< the field that gave the queries
  std::string_view document_param;   ///< the field that gave the documents
  std::string instruction;           ///< for templates that have one; empty: the template's own
  uint32_t max_document_tokens = 0;  ///< 0: no limit
  [[nodiscard]] size_t pair_count() const { return documents.size(); }
  [[nodiscard]] size_t query_of(size_t pair) const { return queries.size() == 1 ? 0 : pair; }
};

struct RerankRequest : PairRequest {
  uint32_t top_n = 0;  ///< 0: all
  bool return_documents = true;
};

[[nodiscard]] ApiResult<EmbeddingRequest> parse_embedding_request(const std::string& body, const RequestLimits& limits);
[[nodiscard]] ApiResult<RerankRequest> parse_rerank_request(const std::string& body, const RequestLimits& limits);
[[nodiscard]] ApiResult<PairRequest> parse_score_request(const std::string& body, const RequestLimits& limits);

}  // namespace millrace::server::openai
