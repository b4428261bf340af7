#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/utf8.h"
#include "server/openai/response.h"

namespace millrace::server::openai {
namespace {

/// Returns the token's text, or "bytes:\xe2\x80" where its bytes are not valid UTF-8 by themselves.
std::string token_text(const text::Tokenizer& tokenizer, TokenId token) {
  std::string bytes = tokenizer.token_bytes(token);
  if (is_valid_utf8(bytes)) return bytes;
  std::string escaped = "bytes:";
  for (const char c : bytes) escaped += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  return escaped;
}

/// Returns a finite number, as clients parse it: a token that cannot be drawn gets vLLM's value.
float finite_logprob(float logprob) {
  return std::isfinite(logprob) ? logprob : -9999.0f;
}

std::string token_name(const ChoiceOptions& options, TokenId token) {
  return options.tokens_as_ids ? fmt::format("token_id:{}", token) : token_text(*options.tokenizer, token);
}

void write_token(JsonWriter& json, const ChoiceOptions& options, TokenId token, float logprob) {
  json.member("token", token_name(options, token)).member("logprob", finite_logprob(logprob));
  json.key("bytes").begin_array();
  for (const char byte : options.tokenizer->token_bytes(token)) json.value(static_cast<unsigned char>(byte));
  json.end_array();
}

void write_top_object(JsonWriter& json, const ChoiceOptions& options, const tensor::TokenLogprobs& logprobs) {
  std::vector<std::string> names;
  const auto add = [&](TokenId token, float logprob) {
    std::string name = token_name(options, token);
    if (std::ranges::find(names, name) != names.end()) return;
    json.member(name, finite_logprob(logprob));
    names.push_back(std::move(name));
  };
  json.begin_object();
  for (const auto& [token, logprob] : logprobs.top) add(token, logprob);
  add(logprobs.token, logprobs.logprob);
  json.end_object();
}

}  // namespace

void write_completion_logprobs(JsonWriter& json, const ChoiceOptions& options, std::span<const ScoredToken> tokens) {
  json.begin_object().key("tokens").begin_array();
  for (const ScoredToken& token : tokens) json.value(token_name(options, token.logprobs.token));
  json.end_array().key("token_logprobs").begin_array();
  for (const ScoredToken& token : tokens) {
    if (token.scored) {
      json.value(finite_logprob(token.logprobs.logprob));
    } else {
      json.null();
    }
  }
  json.end_array().key("top_logprobs").begin_array();
  for (const ScoredToken& token : tokens) {
    if (token.scored) {
      write_top_object(json, options, token.logprobs);
    } else {
      json.null();
    }
  }
  json.end_array().key("text_offset").begin_array();
  for (const ScoredToken& token : tokens) json.value(token.text_offset);
  json.end_array().end_object();
}

void write_chat_logprobs(JsonWriter& json, const ChoiceOptions& options, std::span<const ScoredToken> tokens) {
  json.begin_object().key("content");
  write_token_logprobs(json, options, tokens);
  json.key("refusal").null().end_object();
}

void write_token_logprobs(JsonWriter& json, const ChoiceOptions& options, std::span<const ScoredToken> tokens) {
  json.begin_array();
  for (const ScoredToken& token : tokens) {
    json.begin_object();
    write_token(json, options, token.logprobs.token, token.logprobs.logprob);
    json.key("top_logprobs").begin_array();
    for (const auto& [id, logprob] : token.logprobs.top) {
      json.begin_object();
      write_token(json, options, id, logprob);
      json.end_object();
    }
    json.end_array().end_object();
  }
  json.end_array();
}

void write_prompt_logprobs(JsonWriter& json, const text::Tokenizer& tokenizer,
                           std::span<const tensor::TokenLogprobs> tokens) {
  json.begin_array();
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (i == 0) {
      json.null();
      continue;
    }
    const auto entry = [&](TokenId token, float logprob, int32_t rank) {
      json.key(fmt::to_string(token)).begin_object().member("logprob", finite_logprob(logprob));
      json.member("rank", rank).member("decoded_token", token_text(tokenizer, token)).end_object();
    };
    const tensor::TokenLogprobs& token = tokens[i];
    json.begin_object();
    entry(token.token, token.logprob, token.rank);
    int32_t rank = 0;
    for (const auto& [id, logprob] : token.top) {
      ++rank;
      if (id != token.token) entry(id, logprob, rank);
    }
    json.end_object();
  }
  json.end_array();
}

}  // namespace millrace::server::openai
