#include <algorithm>
#include <array>
#include <charconv>

#include "server/openai/field.h"

namespace millrace::server::openai {
namespace {

constexpr int64_t kMaxTokenCount = std::numeric_limits<int32_t>::max();
constexpr int64_t kMaxLogprobs = 20;
constexpr size_t kMaxStops = 4;
constexpr size_t kMaxLogitBias = 4096;
constexpr size_t kMaxIdBytes = 256;

template <class T>
Refusal keep(Refusal refusal, T&& value, std::optional<std::remove_cvref_t<T>>& out) {
  if (!refusal) out = std::forward<T>(value);
  return refusal;
}

Refusal optional_float(std::string_view name, Json value, double low, double high, bool open_low,
                       std::optional<float>& out) {
  float number = 0;
  return keep(read_float(name, value, low, high, open_low, number), number, out);
}

Refusal read_stop(std::string_view name, Json value, const RequestLimits&, CommonRequest& request) {
  request.stop.clear();
  simdjson::dom::array array;
  if (value.get_array().get(array) != simdjson::SUCCESS) {
    std::string text;
    if (!value.is_string()) return wrong_type(name, value, "a string or an array of strings");
    if (Refusal refusal = read_string(name, value, text)) return refusal;
    request.stop.push_back(std::move(text));
  } else {
    if (array.size() > kMaxStops) {
      return bad_request(name, "{}: found {} stop strings, wanted at most {}", name, array.size(), kMaxStops);
    }
    for (const Json item : array) {
      if (Refusal refusal = read_string(name, item, request.stop.emplace_back())) return refusal;
    }
  }
  const bool has_empty = std::any_of(request.stop.begin(), request.stop.end(),
                                     [](const std::string& text) { return text.empty(); });
  if (has_empty) return bad_request(name, "{}: a stop string is empty", name);
  return std::nullopt;
}

Refusal read_logit_bias(std::string_view name, Json value, const RequestLimits& limits, CommonRequest& request) {
  simdjson::dom::object object;
  if (value.get_object().get(object) != simdjson::SUCCESS) {
    return wrong_type(name, value, "an object of token ids and biases");
  }
  if (object.size() > kMaxLogitBias) {
    return bad_request(name, "{}: found {} entries, wanted at most {}", name, object.size(), kMaxLogitBias);
  }
  request.logit_bias.clear();
  for (const auto& member : object) {
    int64_t id = -1;
    const char* end = member.key.data() + member.key.size();
    const auto parsed = std::from_chars(member.key.data(), end, id);
    if (parsed.ec != std::errc() || parsed.ptr != end) {
      return bad_request(name, "{}: key '{}' is not a token id", name, member.key.substr(0, 64));
    }
    if (id < 0 || id >= static_cast<int64_t>(limits.vocab_size)) {
      return bad_request(name, "{}: token id {} is outside the vocabulary of {} tokens", name, id, limits.vocab_size);
    }
    float bias = 0;
    if (Refusal refusal = read_float(name, member.value, -100, 100, false, bias)) return refusal;
    request.logit_bias.emplace_back(static_cast<TokenId>(id), bias);
  }
  return std::nullopt;
}

Refusal read_stream_options(std::string_view name, Json value, const RequestLimits&, CommonRequest& request) {
  simdjson::dom::object object;
  if (value.get_object().get(object) != simdjson::SUCCESS) return wrong_type(name, value, "an object");
  for (const auto& member : object) {
    if (member.value.is_null()) continue;
    if (member.key == "include_usage") {
      if (Refusal refusal = read_bool("stream_options.include_usage", member.value, request.include_usage)) {
        return refusal;
      }
    } else if (member.key == "continuous_usage_stats") {
      const std::string_view full = "stream_options.continuous_usage_stats";
      if (Refusal refusal = read_bool(full, member.value, request.continuous_usage)) return refusal;
    }
  }
  return std::nullopt;
}

Refusal read_top_k(std::string_view name, Json value, const RequestLimits&, CommonRequest& request) {
  int32_t top_k = 0;
  const Refusal refusal = read_int(name, value, -1, std::numeric_limits<int32_t>::max(), top_k);
  return keep(refusal, std::max(top_k, 0), request.top_k);
}

Refusal read_seed(std::string_view name, Json value, const RequestLimits&, CommonRequest& request) {
  int64_t seed = 0;
  const Refusal refusal = read_integer(name, value, std::numeric_limits<int64_t>::min(),
                                       std::numeric_limits<int64_t>::max(), seed);
  return keep(refusal, static_cast<uint64_t>(seed), request.seed);
}

Refusal read_max_tokens(std::string_view name, Json value, const RequestLimits&, CommonRequest& request) {
  uint32_t count = 0;
  return keep(read_int(name, value, 0, kMaxTokenCount, count), count, request.max_tokens);
}

Refusal read_truncation(std::string_view name, Json value, const RequestLimits&, CommonRequest& request) {
  uint32_t count = 0;
  return keep(read_int(name, value, 1, kMaxTokenCount, count), count, request.truncate_prompt_tokens);
}

Refusal read_short_string(std::string_view name, Json value, std::string& out) {
  if (Refusal refusal = read_string(name, value, out)) return refusal;
  if (out.size() > kMaxIdBytes) {
    return bad_request(name, "{}: found {} bytes, wanted at most {}", name, out.size(), kMaxIdBytes);
  }
  return std::nullopt;
}

using Common = CommonRequest;
using Limits = RequestLimits;
using Name = std::string_view;

constexpr std::array kCommonFields = {
    Field<Common>{"model", [](Name n, Json v, const Limits&, Common& r) { return read_string(n, v, r.model); }},
    Field<Common>{"max_tokens", read_max_tokens},
    Field<Common>{"n", [](Name n, Json v, const Limits& l, Common& r) {
                    return read_int(n, v, 1, static_cast<int64_t>(l.max_choices), r.n);
                  }},
    Field<Common>{"temperature", [](Name n, Json v, const Limits&, Common& r) {
                    return optional_float(n, v, 0, 2, false, r.temperature);
                  }},
    Field<Common>{"top_p", [](Name n, Json v, const Limits&, Common& r) {
                    return optional_float(n, v, 0, 1, true, r.top_p);
                  }},
    Field<Common>{"min_p", [](Name n, Json v, const Limits&, Common& r) {
                    return optional_float(n, v, 0, 1, false, r.min_p);
                  }},
    Field<Common>{"repetition_penalty", [](Name n, Json v, const Limits&, Common& r) {
                    return optional_float(n, v, 0, 10, true, r.repetition_penalty);
                  }},
    Field<Common>{"presence_penalty", [](Name n, Json v, const Limits&, Common& r) {
                    return read_float(n, v, -2, 2, false, r.presence_penalty);
                  }},
    Field<Common>{"frequency_penalty", [](Name n, Json v, const Limits&, Common& r) {
                    return read_float(n, v, -2, 2, false, r.frequency_penalty);
                  }},
    Field<Common>{"top_k", read_top_k},
    Field<Common>{"seed", read_seed},
    Field<Common>{"stop", read_stop},
    Field<Common>{"stop_token_ids", [](Name n, Json v, const Limits& l, Common& r) {
                    return read_token_ids(n, v, l.vocab_size, r.stop_token_ids);
                  }},
    Field<Common>{"logit_bias", read_logit_bias},
    Field<Common>{"prompt_logprobs", [](Name n, Json v, const Limits&, Common& r) {
                    return read_int(n, v, 0, kMaxLogprobs, r.prompt_logprobs);
                  }},
    Field<Common>{"min_tokens", [](Name n, Json v, const Limits&, Common& r) {
                    return read_int(n, v, 0, kMaxTokenCount, r.min_tokens);
                  }},
    Field<Common>{"ignore_eos", [](Name n, Json v, const Limits&, Common& r) { return read_bool(n, v, r.ignore_eos); }},
    Field<Common>{"include_stop_str_in_output",
                  [](Name n, Json v, const Limits&, Common& r) { return read_bool(n, v, r.include_stop); }},
    Field<Common>{"skip_special_tokens",
                  [](Name n, Json v, const Limits&, Common& r) { return read_bool(n, v, r.skip_special_tokens); }},
    Field<Common>{"return_token_ids",
                  [](Name n, Json v, const Limits&, Common& r) { return read_bool(n, v, r.return_token_ids); }},
    Field<Common>{"truncate_prompt_tokens", read_truncation},
    Field<Common>{"add_special_tokens", [](Name n, Json v, const Limits&, Common& r) {
                    bool flag = false;
                    return keep(read_bool(n, v, flag), flag, r.add_special_tokens);
                  }},
    Field<Common>{"priority", [](Name n, Json v, const Limits&, Common& r) {
                    return read_int(n, v, std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max(),
                                    r.priority);
                  }},
    Field<Common>{"request_id",
                  [](Name n, Json v, const Limits&, Common& r) { return read_short_string(n, v, r.request_id); }},
    Field<Common>{"cache_salt",
                  [](Name n, Json v, const Limits&, Common& r) { return read_short_string(n, v, r.cache_salt); }},
    Field<Common>{"stream", [](Name n, Json v, const Limits&, Common& r) { return read_bool(n, v, r.stream); }},
    Field<Common>{"stream_options", read_stream_options},
};

}  // namespace

std::span<const Field<CommonRequest>> common_fields() { return kCommonFields; }

Refusal check_common(const CommonRequest& request) {
  if ((request.include_usage || request.continuous_usage) && !request.stream) {
    return bad_request("stream_options", "stream_options: allowed only with stream true");
  }
  if (request.max_tokens && request.min_tokens > *request.max_tokens) {
    return bad_request("min_tokens", "min_tokens: found {}, wanted at most max_tokens {}", request.min_tokens,
                       *request.max_tokens);
  }
  if (request.stream && request.prompt_logprobs >= 0) {
    return bad_request("prompt_logprobs", "prompt_logprobs: not available with stream true");
  }
  return std::nullopt;
}

}  // namespace millrace::server::openai
