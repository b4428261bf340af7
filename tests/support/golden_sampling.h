#pragma once

#include <simdjson.h>

#include <string>
#include <vector>

#include "tensor/sampling.h"

/// Readers for the cases of tests/golden/sampling.json.
namespace millrace::test {

inline std::vector<TokenId> tokens_of(simdjson::dom::element list) {
  std::vector<TokenId> tokens;
  for (const auto token : list.get_array()) tokens.push_back(static_cast<TokenId>(token.get_int64()));
  return tokens;
}

inline tensor::SamplingParams params_of(simdjson::dom::element given) {
  const auto number = [&](const char* name) { return static_cast<float>(given[name].get_double()); };
  tensor::SamplingParams params{.temperature = number("temperature"),
                                .top_p = number("top_p"),
                                .min_p = number("min_p"),
                                .top_k = static_cast<int32_t>(given["top_k"].get_int64()),
                                .repetition_penalty = number("repetition_penalty"),
                                .frequency_penalty = number("frequency_penalty"),
                                .presence_penalty = number("presence_penalty")};
  for (const auto& [token, bias] : given["logit_bias"].get_object()) {
    params.logit_bias.emplace_back(std::stoi(std::string(token)), static_cast<float>(bias.get_double()));
  }
  return params;
}

}  // namespace millrace::test
