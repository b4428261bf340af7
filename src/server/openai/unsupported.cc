#include <algorithm>
#include <array>

#include "server/openai/field.h"

namespace millrace::server::openai {
namespace {

/// Returns whether a value asks for nothing: false, "", [], {}.
bool is_neutral_value(Json value) {
  if (std::string_view text; value.get(text)) return text.empty();
  if (JsonArray array; value.get(array)) return array.empty();
  if (JsonObject object; value.get(object)) return object.empty();
  return value.is_null() || value.is_false();
}

constexpr int64_t kMaxBestOf = 1024;
/// A member that names functions for the model, and the member that may turn them off.
struct Switched {
  std::string_view name;
  std::string_view choice;
};
/// The last is refused outside of chats only.
constexpr std::array kSwitched = {Switched{"functions", "function_call"}, Switched{"tools", "tool_choice"}};
std::span<const Switched> switched(bool is_chat) {
  return std::span(kSwitched).first(is_chat ? 1 : 2);
}
constexpr std::array<std::string_view, 38> kUnsupported = {"suffix",
                                                           "audio",
                                                           "guided_decoding_backend",
                                                           "structural_tag",
                                                           "lora_path",
                                                           "lora_request",
                                                           "lora",
                                                           "use_beam_search",
                                                           "logits_processors",
                                                           "bad_words",
                                                           "allowed_token_ids",
                                                           "prompt_embeds",
                                                           "input_embeds",
                                                           "custom_logit_processor",
                                                           "kv_transfer_params",
                                                           "web_search_options",
                                                           "logprob_token_ids",
                                                           "token_ids_logprob",
                                                           "repetition_detection",
                                                           "return_prompt_text",
                                                           "return_logprob",
                                                           "post_sampling_probs",
                                                           "return_routed_experts",
                                                           "watermark",
                                                           "watermarking",
                                                           "stop_regex",
                                                           "no_stop_trim",
                                                           "return_hidden_states",
                                                           "custom_params",
                                                           "session_params",
                                                           "samplers",
                                                           "response_fields",
                                                           "vllm_xargs",
                                                           "extra_args",
                                                           "grammar_triggers",
                                                           "grammar_lazy",
                                                           "thinking_token_budget",
                                                           "documents"};
/// Returns the unsupported members; a chat supports the last two.
std::span<const std::string_view> unsupported(bool is_chat) {
  return std::span(kUnsupported).first(kUnsupported.size() - (is_chat ? 2 : 0));
}
/// Numbers that other servers take, and the value of each that changes nothing; more than one where two mean "off".
struct Neutral {
  std::string_view name;
  int64_t value;
  int64_t other_value = value;
};
constexpr std::array kNeutral = {Neutral{"n_predict", -1},
                                 Neutral{"typical_p", 1},
                                 Neutral{"mirostat", 0},
                                 Neutral{"mirostat_mode", 0},
                                 Neutral{"dry_multiplier", 0},
                                 Neutral{"xtc_probability", 0},
                                 Neutral{"dynatemp_range", 0},
                                 Neutral{"top_n_sigma", -1, 0},
                                 Neutral{"top_a", 0},
                                 Neutral{"tfs_z", 1},
                                 Neutral{"smoothing_factor", 0},
                                 Neutral{"epsilon_cutoff", 0},
                                 Neutral{"eta_cutoff", 0},
                                 Neutral{"nsigma", 0},
                                 Neutral{"adaptive_target", -1},
                                 Neutral{"min_keep", 0},
                                 Neutral{"n_indent", 0},
                                 Neutral{"n_probs", 0},
                                 Neutral{"top_logprobs_num", 0},
                                 Neutral{"t_max_predict_ms", -1, 0},
                                 Neutral{"no_repeat_ngram_size", 0},
                                 Neutral{"num_beams", 1},
                                 Neutral{"thinking_budget", -1},
                                 Neutral{"thinking_budget_tokens", -1}};
/// Returns the numbers that have no effect here; a chat supports the last two.
std::span<const Neutral> neutral(bool is_chat) {
  return std::span(kNeutral).first(kNeutral.size() - (is_chat ? 2 : 0));
}
/// Flags that other servers have on by default, and that change the output when they are off.
constexpr std::array<std::string_view, 2> kAlwaysOn = {"detokenize", "parse_tool_calls"};
/// Members that check_unsupported looks at one by one.
constexpr std::array<std::string_view, 3> kCheckedFields = {"modalities", "n", "best_of"};

FieldError check_neutral(const Neutral& neutral, Json value) {
  double number = 0;
  const bool is_neutral = value.get(number) && (number == static_cast<double>(neutral.value) ||
                                                number == static_cast<double>(neutral.other_value));
  if (is_neutral || is_neutral_value(value)) return std::nullopt;
  return bad_request(neutral.name, "{}: found {}, which this server does not support; wanted {} or nothing",
                     neutral.name, describe(value), neutral.value);
}

FieldError check_always_on(std::string_view name, Json value) {
  bool is_on = false;
  if (value.get(is_on) && is_on) return std::nullopt;
  return bad_request(name, "{}: found {}, which this server does not support; wanted true or nothing", name,
                     describe(value));
}

/// The members of one body that concern one Switched.
struct SwitchState {
  std::optional<Json> value;  ///< that asks for something; one that is no array goes before
  bool is_off = false;

  void note(const Switched& switched, std::string_view key, Json member) {
    std::string_view word;
    if (key == switched.choice) is_off = member.get(word) && word == "none";
    if (key != switched.name || is_neutral_value(member)) return;
    if (!value || !member.is_array()) value = member;
  }
};

FieldError check_switched(const Switched& switched, const SwitchState& state) {
  if (!state.value || (state.is_off && state.value->is_array())) return std::nullopt;
  if (state.is_off) return wrong_type(switched.name, *state.value, "an array");
  return bad_request(switched.name, "{}: not supported here, unless {} is 'none'; tools of /v1/chat/completions are",
                     switched.name, switched.choice);
}

FieldError check_choice_name(std::string_view name, Json value) {
  std::string_view word;
  const bool harmless = value.get(word) && (word == "none" || word == "auto");
  if (harmless) return std::nullopt;
  return bad_request(name, "{}: not supported here; tools of /v1/chat/completions are", name);
}

FieldError check_modalities(Json value) {
  JsonArray array;
  if (!value.get(array)) return wrong_type("modalities", value, "an array");
  for (const Json item : array) {
    std::string_view word;
    if (!item.get(word) || word != "text") {
      return bad_request("modalities", "modalities: only 'text' is supported");
    }
  }
  return std::nullopt;
}

}  // namespace

FieldError check_unsupported(JsonObject object, bool is_chat) {
  int64_t n = 1;
  std::optional<int64_t> best_of;
  const std::span<const Switched> known = switched(is_chat);
  std::array<SwitchState, kSwitched.size()> switches;
  for (const auto& member : object) {
    const std::string_view key = member.key;
    const Json value = member.value;
    if (value.is_null()) continue;
    FieldError field_error;
    if (key == "function_call" || (key == "tool_choice" && !is_chat)) field_error = check_choice_name(key, value);
    if (key == "modalities") field_error = check_modalities(value);
    // The reader of "n" itself refuses what is no integer.
    if (key == "n") (void)read_integer(key, value, INT64_MIN, INT64_MAX, n);
    if (key == "best_of") field_error = read_integer(key, value, 1, kMaxBestOf, best_of.emplace());
    for (const Neutral& each : neutral(is_chat)) {
      if (each.name == key) field_error = check_neutral(each, value);
    }
    if (std::ranges::find(kAlwaysOn, key) != kAlwaysOn.end()) field_error = check_always_on(key, value);
    if (field_error) return field_error;
    for (size_t i = 0; i < known.size(); ++i) switches[i].note(known[i], key, value);
    for (const std::string_view name : unsupported(is_chat)) {
      if (name == key && !is_neutral_value(value)) {
        return bad_request(name, "{}: not supported by this server", name);
      }
    }
  }
  for (size_t i = 0; i < known.size(); ++i) {
    if (FieldError field_error = check_switched(known[i], switches[i])) return field_error;
  }
  if (best_of && *best_of != n) {
    return bad_request("best_of", "best_of: found {}, wanted n = {} (choosing among more is not supported)", *best_of,
                       n);
  }
  return std::nullopt;
}

bool is_checked_field(std::string_view name) {
  const auto has_name = [name](const auto& each) { return each.name == name; };
  const auto switches = [name](const Switched& each) { return each.name == name || each.choice == name; };
  return std::ranges::find(kUnsupported, name) != kUnsupported.end() || std::ranges::any_of(kNeutral, has_name) ||
         std::ranges::any_of(kSwitched, switches) || std::ranges::find(kAlwaysOn, name) != kAlwaysOn.end() ||
         std::ranges::find(kCheckedFields, name) != kCheckedFields.end();
}

void describe_unsupported(SchemaWriter& schema, bool is_chat) {
  JsonWriter& json = schema.json();
  for (const Neutral& each : neutral(is_chat)) {
    json.key(each.name).begin_object().member("description", "Not supported; only a value without effect is accepted");
    std::string values = fmt::format(R"([null,false,"",[],{{}},{})", each.value);
    if (each.other_value != each.value) values += fmt::format(",{}", each.other_value);
    json.key("enum").raw(values + ']').end_object();
  }
  for (const std::string_view name : kAlwaysOn) {
    json.key(name).begin_object().member("description", "Not supported; only true is accepted");
    json.key("enum").raw("[null,true]").end_object();
  }
  for (const std::string_view name : unsupported(is_chat)) {
    json.key(name).begin_object().member("description", "Not supported; only a value without effect is accepted");
    json.key("enum").raw(R"([null,false,"",[],{}])").end_object();
  }
  for (const Switched& each : switched(is_chat)) {
    json.key(each.name).begin_object();
    json.member("description", fmt::format("Without effect; allowed only where {} is \"none\"", each.choice));
    json.key("anyOf").raw(R"([{"type":"array"},{"enum":[null,false,"",{}]}])").end_object();
  }
  static constexpr std::array<std::string_view, 2> kChoices = {"none", "auto"};
  schema.set_nullable(true);
  for (const Switched& each : switched(is_chat)) {
    json.key(each.choice).begin_object();
    schema.words(kChoices);
    json.end_object();
  }
  json.key("modalities").begin_object();
  schema.type("array");
  json.key("items").raw(R"({"const":"text"})").end_object().key("best_of").begin_object();
  schema.integer(1, kMaxBestOf);
  json.member("description", "The same as n").end_object();
}

void describe_switches(SchemaWriter& schema, bool is_chat) {
  JsonWriter& json = schema.json();
  json.key("allOf").begin_array();
  for (const Switched& each : switched(is_chat)) {
    json.begin_object().key("anyOf").begin_array().begin_object().key("properties").begin_object();
    json.key(each.name).raw(R"({"enum":[null,false,"",[],{}]})").end_object().end_object().begin_object();
    json.key("required").begin_array().value(each.choice).end_array().key("properties").begin_object();
    json.key(each.choice).raw(R"({"const":"none"})").end_object().end_object().end_array().end_object();
  }
  json.end_array();
}

}  // namespace millrace::server::openai
