#include <algorithm>
#include <array>
#include <charconv>

#include "server/openai/response_format.h"
#include "server/openai/field.h"
#include "text/unicode.h"

namespace millrace::server::openai {
namespace {

constexpr size_t kMaxStops = 16;  // every byte of an output is compared with each
constexpr size_t kMaxStopLength = 1024;
constexpr size_t kMaxStopsLength = 4096;  // each of n choices has its own automaton of them
constexpr size_t kMaxLogitBias = 4096;
constexpr size_t kMaxStopTokenIds = 4096;  // each of n choices carries them
constexpr double kMaxBias = 100;
constexpr double kMinRepetitionPenalty = 0.001;  // logits divided by less may overflow
constexpr size_t kMaxIdLength = 256;

FieldError read_n(std::string_view name, Json value, const RequestLimits& limits, CommonRequest& request) {
  const auto most = static_cast<int64_t>(limits.max_choices);
  int64_t n = 0;
  const bool is_too_many = value.get(n) && n > most;
  if (is_too_many) return bad_request(name, "{}: found {}, wanted at most {} (--max-choices)", name, n, most);
  return read_int(name, value, 1, most, request.n);
}

FieldError read_stop(std::string_view name, Json value, const RequestLimits&, CommonRequest& request) {
  request.stop.clear();
  JsonArray array;
  if (!value.get(array)) {
    std::string text;
    if (!value.is_string()) return wrong_type(name, value, "a string or an array of strings");
    if (FieldError field_error = read_string(name, value, text)) return field_error;
    request.stop.push_back(std::move(text));
  } else {
    if (array.size() > kMaxStops) {
      return bad_request(name, "{}: found {} stop strings, wanted at most {}", name, array.size(), kMaxStops);
    }
    for (const Json item : array) {
      if (FieldError field_error = read_string(name, item, request.stop.emplace_back())) return field_error;
    }
  }
  size_t total = 0;
  for (const std::string& stop : request.stop) {
    const size_t length = text::count_code_points(stop);
    if (length == 0) return bad_request(name, "{}: a stop string is empty", name);
    if (length > kMaxStopLength) {
      return bad_request(name, "{}: found a stop string of {} characters, wanted at most {}", name, length,
                         kMaxStopLength);
    }
    total += length;
  }
  if (total > kMaxStopsLength) {
    return bad_request(name, "{}: found stop strings of {} characters together, wanted at most {}", name, total,
                       kMaxStopsLength);
  }
  return std::nullopt;
}

FieldError read_stop_token_ids(std::string_view name, Json value, const RequestLimits& limits, CommonRequest& request) {
  if (FieldError field_error = read_token_ids(name, value, limits.vocab_size, request.stop_token_ids))
    return field_error;
  const size_t count = request.stop_token_ids.size();
  if (count <= kMaxStopTokenIds) return std::nullopt;
  return bad_request(name, "{}: found {} ids, wanted at most {}", name, count, kMaxStopTokenIds);
}

FieldError read_logit_bias(std::string_view name, Json value, const RequestLimits& limits, CommonRequest& request) {
  JsonObject object;
  if (!value.get(object)) {
    return wrong_type(name, value, "an object of token ids and biases");
  }
  if (object.size() > kMaxLogitBias) {
    return bad_request(name, "{}: found {} entries, wanted at most {}", name, object.size(), kMaxLogitBias);
  }
  request.logit_bias.clear();
  for (const auto& member : object) {
    uint64_t id = 0;
    const char* end = member.key.data() + member.key.size();
    const auto parsed = std::from_chars(member.key.data(), end, id);
    if (parsed.ec != std::errc() || parsed.ptr != end) {
      return bad_request(name, "{}: key '{}' is not a token id", name, member.key.substr(0, 64));
    }
    if (id >= limits.vocab_size) {
      return bad_request(name, "{}: token id {} is outside the vocabulary of {} tokens", name, id, limits.vocab_size);
    }
    float bias = 0;
    if (FieldError field_error = read_float(name, member.value, -kMaxBias, kMaxBias, bias)) return field_error;
    request.logit_bias.emplace_back(static_cast<TokenId>(id), bias);
  }
  return std::nullopt;
}

FieldError read_stream_options(std::string_view name, Json value, const RequestLimits&, CommonRequest& request) {
  JsonObject object;
  if (!value.get(object)) return wrong_type(name, value, "an object");
  for (const auto& member : object) {
    if (member.value.is_null()) continue;
    if (member.key == "include_usage") {
      if (FieldError field_error = read_bool("stream_options.include_usage", member.value, request.include_usage)) {
        return field_error;
      }
    } else if (member.key == "continuous_usage_stats") {
      const std::string_view full = "stream_options.continuous_usage_stats";
      if (FieldError field_error = read_bool(full, member.value, request.continuous_usage)) return field_error;
    }
  }
  return std::nullopt;
}

FieldError read_priority(std::string_view name, Json value, const RequestLimits& limits, CommonRequest& request) {
  constexpr int64_t kLow = std::numeric_limits<int32_t>::min();
  constexpr int64_t kHigh = std::numeric_limits<int32_t>::max();
  if (FieldError field_error = read_int(name, value, kLow, kHigh, request.priority)) return field_error;
  if (limits.has_priorities || request.priority == 0) return std::nullopt;
  return bad_request(name,
                     "{}: found {}, but the queue of this server does not go by priorities "
                     "(--schedule-policy priority)",
                     name, request.priority);
}

void describe_priority(SchemaWriter& schema) {
  const bool any = schema.limits().has_priorities;
  schema.integer(any ? std::numeric_limits<int32_t>::min() : 0, any ? std::numeric_limits<int32_t>::max() : 0);
}

FieldError read_ring(std::string_view name, Json value, const RequestLimits& limits, CommonRequest& request) {
  return read_int(name, value, 0, int64_t{limits.ring_count} - 1, request.ring.emplace());
}

void describe_ring(SchemaWriter& schema) {
  schema.integer(0, int64_t{schema.limits().ring_count} - 1);
}

FieldError read_top_k(std::string_view name, Json value, const RequestLimits&, CommonRequest& request) {
  int32_t top_k = 0;
  if (FieldError field_error = read_int(name, value, -1, std::numeric_limits<int32_t>::max(), top_k))
    return field_error;
  request.top_k = std::max(top_k, 0);
  return std::nullopt;
}

FieldError read_truncation(std::string_view name, Json value, const RequestLimits&, CommonRequest& request) {
  int32_t count = 0;
  if (FieldError field_error = read_int(name, value, -1, std::numeric_limits<int32_t>::max(), count))
    return field_error;
  if (count == 0) return bad_request(name, "{}: found 0, wanted -1 or at least 1", name);
  request.truncate_prompt_tokens = count;
  return std::nullopt;
}

constexpr std::array<std::string_view, 2> kSides = {"left", "right"};

void use_truncation_side(std::string_view side, CommonRequest& request) {
  request.keep_prompt_start = side == "right";
}

void describe_truncation(SchemaWriter& schema) {
  JsonWriter& json = schema.json();
  json.key("anyOf").begin_array();
  json.begin_object().member("type", "integer").member("minimum", 1);
  json.member("maximum", std::numeric_limits<int32_t>::max()).end_object();
  json.begin_object().member("const", -1).end_object();
  json.begin_object().member("type", "null").end_object().end_array();
}

FieldError read_seed(std::string_view name, Json value, const RequestLimits&, CommonRequest& request) {
  int64_t seed = 0;
  if (FieldError field_error =
          read_integer(name, value, std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max(), seed)) {
    return field_error;
  }
  request.seed.reset();
  if (seed != -1) request.seed = static_cast<uint64_t>(seed);
  return std::nullopt;
}

void describe_stop(SchemaWriter& schema) {
  JsonWriter& json = schema.json();
  json.key("anyOf").begin_array();
  const auto string = [&json] {
    json.begin_object().member("type", "string").member("minLength", 1).member("maxLength", kMaxStopLength);
    json.end_object();
  };
  string();
  json.begin_object().member("type", "array").member("maxItems", kMaxStops).key("items");
  string();
  json.end_object();
  json.begin_object().member("type", "null").end_object().end_array();
}

void describe_logit_bias(SchemaWriter& schema) {
  JsonWriter& json = schema.json();
  schema.type("object");
  json.member("maxProperties", kMaxLogitBias).key("propertyNames").begin_object();
  json.member("pattern", "^[0-9]+$").end_object().key("additionalProperties").begin_object();
  json.member("type", "number").member("minimum", -kMaxBias).member("maximum", kMaxBias).end_object();
}

void describe_stream_options(SchemaWriter& schema) {
  JsonWriter& json = schema.json();
  schema.type("object");
  json.key("properties").begin_object();
  for (const char* name : {"include_usage", "continuous_usage_stats"}) {
    json.key(name).begin_object();
    schema.type("boolean");
    json.end_object();
  }
  json.end_object();
}

template <auto kMember>
constexpr Field<CommonRequest> short_string_field(std::string_view name, std::string_view note) {
  return {name,
          [](std::string_view n, Json value, const RequestLimits&, CommonRequest& request) -> FieldError {
            std::string& out = request.*kMember;
            if (FieldError field_error = read_string(n, value, out)) return field_error;
            const size_t length = text::count_code_points(out);
            if (length <= kMaxIdLength) return std::nullopt;
            return bad_request(n, "{}: found {} characters, wanted at most {}", n, length, kMaxIdLength);
          },
          [](SchemaWriter& schema) {
            schema.type("string");
            schema.json().member("maxLength", kMaxIdLength);
          },
          note};
}

using Common = CommonRequest;
using Limits = RequestLimits;
using Name = std::string_view;

constexpr std::array kCommonFields = {
    string_field<Common, &Common::model>("model", "A name from /v1/models; may be absent"),
    Field<Common>{"n", read_n, [](SchemaWriter& s) { s.integer(1, static_cast<int64_t>(s.limits().max_choices)); }},
    number_field<Common, &Common::temperature, 0.0, 2.0>("temperature"),
    number_field<Common, &Common::top_p, 0.0, 1.0>("top_p", "0: the most probable token alone"),
    number_field<Common, &Common::min_p, 0.0, 1.0>("min_p"),
    number_field<Common, &Common::repetition_penalty, kMinRepetitionPenalty, 10.0>("repetition_penalty"),
    number_field<Common, &Common::repetition_penalty, kMinRepetitionPenalty, 10.0>("repeat_penalty",
                                                                                   "The same as repetition_penalty"),
    number_field<Common, &Common::presence_penalty, -2.0, 2.0>("presence_penalty"),
    number_field<Common, &Common::frequency_penalty, -2.0, 2.0>("frequency_penalty"),
    Field<Common>{"top_k", read_top_k, [](SchemaWriter& s) { s.integer(-1, kInt32Max); }, "0 or -1: off"},
    Field<Common>{
        "seed", read_seed,
        [](SchemaWriter& s) { s.integer(std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max()); },
        "Choice i of a prompt samples with seed + i. With -1 or without a seed, each choice gets a seed of its own"},
    Field<Common>{"stop", read_stop, describe_stop, "At most 4096 characters together"},
    Field<Common>{"stop_token_ids", read_stop_token_ids,
                  [](SchemaWriter& s) {
                    s.token_ids(s.limits().vocab_size);
                    s.json().member("maxItems", kMaxStopTokenIds);
                  }},
    Field<Common>{"logit_bias", read_logit_bias, describe_logit_bias,
                  "Token ids and the biases that are added to their logits"},
    alternatives_field<Common, &Common::prompt_logprobs>("prompt_logprobs", "Not with stream"),
    integer_field<Common, &Common::min_tokens, 0, kInt32Max>("min_tokens",
                                                             "At most max_tokens; nothing stops the output before"),
    flag_field<Common, &Common::ignore_eos>("ignore_eos"),
    flag_field<Common, &Common::include_stop>("include_stop_str_in_output"),
    flag_field<Common, &Common::skip_special_tokens>("skip_special_tokens", "Default true"),
    flag_field<Common, &Common::return_token_ids>("return_token_ids"),
    flag_field<Common, &Common::tokens_as_ids>("return_tokens_as_token_ids",
                                               "Writes tokens in logprobs as \"token_id:N\""),
    Field<Common>{"truncate_prompt_tokens", read_truncation, describe_truncation,
                  "Keeps the last N tokens; -1 keeps what fits the context together with max_tokens"},
    word_field<Common, kSides, use_truncation_side>(
        "truncation_side", "The side that truncate_prompt_tokens cuts; right keeps the first tokens"),
    flag_field<Common, &Common::add_special_tokens>("add_special_tokens",
                                                    "Default true for a completion, false for a chat"),
    Field<Common>{"priority", read_priority, describe_priority,
                  "Larger goes first, or smaller with --schedule-low-priority-values-first; other than 0 only with "
                  "--schedule-policy priority"},
    short_string_field<&Common::request_id>("request_id", "Part of the response id"),
    short_string_field<&Common::request_id>("rid", "The same as request_id"),
    Field<Common>{"routed_dp_rank", read_ring, describe_ring, "The ring that must run the request (--dp-size)"},
    Field<Common>{"data_parallel_rank", read_ring, describe_ring, "The same as routed_dp_rank"},
    short_string_field<&Common::cache_salt>("cache_salt", "Prefixes are shared between requests of equal salt"),
    Field<Common>{"response_format", read_response_format, describe_response_format,
                  "json_schema: the answer is one that the schema allows, whether strict or not"},
    Field<Common>{"structured_outputs", read_structured_outputs, describe_structured_outputs, "One of its members"},
    Field<Common>{"guided_json", read_guided_json, describe_guided_json, "A JSON schema"},
    Field<Common>{"json_schema", read_guided_json, describe_guided_json, "The same as guided_json"},
    Field<Common>{"guided_regex", read_guided_regex, describe_guided_text, "The whole answer matches it"},
    Field<Common>{"regex", read_guided_regex, describe_guided_text, "The same as guided_regex"},
    Field<Common>{"guided_grammar", read_guided_grammar, describe_guided_text,
                  "EBNF, as llama.cpp has it; its rule root"},
    Field<Common>{"grammar", read_guided_grammar, describe_guided_text, "The same as guided_grammar"},
    Field<Common>{"ebnf", read_guided_grammar, describe_guided_text, "The same as guided_grammar"},
    Field<Common>{"guided_choice", read_guided_choice, describe_guided_choice, "The answer is one of them"},
    flag_field<Common, &Common::stream>("stream"),
    Field<Common>{"stream_options", read_stream_options, describe_stream_options, "Only with stream"},
};

}  // namespace

std::span<const Field<CommonRequest>> common_fields() {
  return kCommonFields;
}

FieldError check_common(const CommonRequest& request) {
  if ((request.include_usage || request.continuous_usage) && !request.stream) {
    return bad_request("stream_options", "stream_options: allowed only with stream true");
  }
  if (request.max_tokens && request.min_tokens > *request.max_tokens) {
    return bad_request("min_tokens", "min_tokens: found {}, wanted at most {} {}", request.min_tokens,
                       request.max_tokens_name, *request.max_tokens);
  }
  if (request.stream && request.prompt_logprobs >= 0) {
    return bad_request("prompt_logprobs", "prompt_logprobs: not available with stream true");
  }
  return std::nullopt;
}

}  // namespace millrace::server::openai
