#include "server/openai/pooling_response.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "base/base64.h"
#include "base/json.h"

namespace millrace::server::openai {
namespace {

void write_prompt_usage(JsonWriter& json, const PoolingInfo& info) {
  json.key("usage").begin_object().member("prompt_tokens", info.prompt_tokens);
  json.member("total_tokens", info.prompt_tokens).end_object();
}

std::string base64_of(std::span<const float> vector) {
  static_assert(std::endian::native == std::endian::little);
  std::string text;
  append_base64(text, std::as_bytes(vector));
  return text;
}

}  // namespace

void append_embeddings(std::string& out, const PoolingInfo& info, std::span<const std::vector<float>> vectors,
                       bool is_base64) {
  JsonWriter json(out);
  json.begin_object().member("object", "list").key("data").begin_array();
  for (size_t i = 0; i < vectors.size(); ++i) {
    json.begin_object().member("object", "embedding").member("index", i).key("embedding");
    if (is_base64) {
      json.value(base64_of(vectors[i]));
    } else {
      json.begin_array();
      for (const float number : vectors[i]) json.value(number);
      json.end_array();
    }
    json.end_object();
  }
  json.end_array().member("model", info.model);
  write_prompt_usage(json, info);
  json.end_object();
}

void append_rerank(std::string& out, const PoolingInfo& info, std::span<const float> scores,
                   std::span<const std::string> texts, uint32_t top_n) {
  std::vector<size_t> order(scores.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::sort(order, [scores](size_t left, size_t right) {
    return scores[left] != scores[right] ? scores[left] > scores[right] : left < right;
  });
  if (top_n > 0 && top_n < order.size()) order.resize(top_n);
  JsonWriter json(out);
  json.begin_object().member("id", info.id).member("model", info.model);
  write_prompt_usage(json, info);
  json.key("results").begin_array();
  for (const size_t index : order) {
    json.begin_object().member("index", index);
    if (!texts.empty()) json.key("document").begin_object().member("text", texts[index]).end_object();
    json.member("relevance_score", scores[index]).end_object();
  }
  json.end_array().end_object();
}

void append_scores(std::string& out, const PoolingInfo& info, std::span<const float> scores) {
  JsonWriter json(out);
  json.begin_object().member("id", info.id).member("object", "list").member("created", info.created_s);
  json.member("model", info.model).key("data").begin_array();
  for (size_t i = 0; i < scores.size(); ++i) {
    json.begin_object().member("index", i).member("object", "score").member("score", scores[i]).end_object();
  }
  json.end_array();
  write_prompt_usage(json, info);
  json.end_object();
}

}  // namespace millrace::server::openai
