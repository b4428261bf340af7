#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

/// Writes the responses of /v1/embeddings, /rerank and /score.
namespace millrace::server::openai {

/// Members that these responses share.
struct PoolingInfo {
  std::string id;
  std::string model;
  int64_t created_s = 0;
  uint64_t prompt_tokens = 0;
};

void append_embeddings(std::string& out, const PoolingInfo& info, std::span<const std::vector<float>> vectors,
                       bool is_base64);
/// Appends the `top_n` documents with the largest scores (0: all), those of equal scores in their own order. Without
/// texts the results have none.
void append_rerank(std::string& out, const PoolingInfo& info, std::span<const float> scores,
                   std::span<const std::string> texts, uint32_t top_n);
void append_scores(std::string& out, const PoolingInfo& info, std::span<const float> scores);

}  // namespace millrace::server::openai
