#include "server/input_processor.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>

#include "base/hash.h"
#include "sched/head/engine.h"
#include "sched/head/model_info.h"
#include "server/chat_format.h"
#include "server/generation_spec.h"
#include "server/constraint_source.h"
#include "server/reasoning_limit.h"
#include "server/prompt_offsets.h"
#include "server/ring_address.h"

namespace millrace::server {
namespace {

constexpr uint32_t kDefaultMaxTokens = 16;  // of a completion, by OpenAI's schema
/// Bounds the prompt logprobs of one response, alternatives included: it is half a gigabyte when written out.
constexpr uint64_t kMaxPromptLogprobs = 8u << 20;

using openai::ApiError;
using openai::ApiResult;
using openai::bad_request;

ApiError context_exceeded(ApiError error) {
  error.code = "context_length_exceeded";
  return error;
}

/// Returns system_fingerprint, which changes with the program's version and the model, as outputs may.
std::string fingerprint_of(const std::string& model) {
  const std::string text = std::string(MILLRACE_VERSION) + '/' + model;
  return fmt::format("fp_{:010x}", hash_bytes(std::as_bytes(std::span(text))) >> 24);
}

int64_t unix_seconds() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::seconds>(now).count();
}

void truncate(std::vector<TokenId>& ids, uint32_t count, bool keep_start) {
  if (ids.size() <= count) return;
  if (keep_start) {
    ids.resize(count);
  } else {
    ids.erase(ids.begin(), ids.end() - static_cast<ptrdiff_t>(count));
  }
}

/// Returns the count of prompt logprobs in the response. Logprobs of drawn tokens are not counted: each is computed.
uint64_t prompt_logprobs(const GenerationSpec& spec) {
  const ChoiceOptions& options = spec.options;
  uint64_t count = 0;
  for (const sched::GenerateRequest& request : spec.requests) {
    if (options.echo && options.logprobs) count += request.prompt.size() * (1 + options.top_logprobs);
    if (options.prompt_logprobs) count += request.prompt.size() * (1 + options.top_prompt_logprobs);
  }
  return count;
}

std::optional<ApiError> check_logprobs(const GenerationSpec& spec) {
  const uint64_t count = prompt_logprobs(spec);
  if (count <= kMaxPromptLogprobs) return std::nullopt;
  const char* param = spec.options.prompt_logprobs ? "prompt_logprobs" : "logprobs";
  return bad_request(param,
                     "{}: the response's {} choices hold {} of their prompts with the alternatives, wanted at most {}: "
                     "lower n or the number of alternatives",
                     param, spec.requests.size(), count, kMaxPromptLogprobs);
}

}  // namespace

void GenerationSpec::set_id(std::string id) {
  info.id = std::move(id);
  for (size_t i = 0; i < requests.size(); ++i) requests[i].id = fmt::format("{}-{}", info.id, i);
}

openai::RequestLimits InputProcessor::limits() const {
  return {.vocab_size = service_.engine->model_info().vocab_size,
          .max_choices = options_.max_choices,
          .max_logprobs = options_.max_logprobs,
          .has_priorities = options_.has_priorities,
          .ring_count = static_cast<uint32_t>(ring_count(*service_.engine))};
}

std::optional<ApiError> InputProcessor::check_model(const std::string& model) const {
  const auto& others = options_.other_model_names;
  if (model.empty() || model == options_.served_model_name) return std::nullopt;
  if (std::ranges::find(others, model) != others.end()) return std::nullopt;
  ApiError unknown(
      404,
      fmt::format("the model '{}' does not exist; this server has '{}'{}{}", model.substr(0, 256),
                  options_.served_model_name, others.empty() ? "" : ", also called ", fmt::join(others, ", ")),
      "model");
  unknown.code = "model_not_found";
  return unknown;
}

ApiResult<std::string> InputProcessor::render(const openai::Conversation& conversation) const {
  auto chat_template = renderer_.choose_template(conversation);
  if (chat_template.has_error()) return chat_template.error();
  return renderer_.render(**chat_template, conversation);
}

ApiResult<GenerationSpec> InputProcessor::prepare(openai::CompletionRequest request,
                                                  const std::string& header_id) const {
  if (auto unknown = check_model(request.model)) return *unknown;
  GenerationSpec spec;
  spec.info.kind = openai::ResponseKind::kCompletion;
  spec.options.echo = request.echo;
  const size_t most = options_.http.max_body_bytes;
  size_t decoded = 0;
  for (openai::Prompt& source : request.prompts) {
    TokenizedPrompt& prompt = spec.prompts.emplace_back();
    std::string* text = std::get_if<std::string>(&source);
    if (text != nullptr) {
      prompt.ids = service_.tokenizer->encode(*text, request.add_special_tokens.value_or(true));
    } else {
      prompt.ids = std::move(std::get<std::vector<TokenId>>(source));
    }
    const size_t full_size = prompt.ids.size();
    truncate(prompt.ids, max_prompt_tokens(request, kDefaultMaxTokens), request.keep_prompt_start);
    if (!request.echo) continue;
    // The text as it was given has none of the special tokens that were added.
    const bool is_as_given = text != nullptr && prompt.ids.size() == full_size && request.skip_special_tokens;
    if (is_as_given) {
      prompt.text = std::move(*text);
      const bool adds_special = request.add_special_tokens.value_or(true);
      prompt.given_from = adds_special ? count_added_start(*service_.tokenizer, prompt.ids) : 0;
      continue;
    }
    prompt.text = service_.tokenizer->decode(prompt.ids, request.skip_special_tokens, most - decoded);
    decoded += prompt.text.size();
    if (decoded > most) {
      return ApiError{413, fmt::format("the text to echo is longer than {} bytes (--max-body-mib)", most), "prompt"};
    }
  }
  return finish(request, std::move(spec), "prompt", header_id, {.response_format = request.response_format});
}

ApiResult<GenerationSpec> InputProcessor::prepare(openai::ChatRequest request, const std::string& header_id) const {
  if (auto unknown = check_model(request.model)) return *unknown;
  auto chat_template = renderer_.choose_template(request.conversation);
  if (chat_template.has_error()) return chat_template.error();
  GenerationSpec spec;
  spec.info.kind = openai::ResponseKind::kChat;
  text::OutputFormat& format = spec.options.output_format;
  OutputConstraint constraint;
  auto text = render_prompt(**chat_template, request, format, constraint);
  if (text.has_error()) return text.error();
  auto limit = make_reasoning_limit(request, format, constraint, *service_.tokenizer, grammar_cache_);
  if (limit.has_error()) return limit.error();
  spec.options.parallel_tool_calls = request.parallel_tool_calls;
  spec.options.include_reasoning = request.include_reasoning;
  for (const openai::Tool& tool : request.conversation.tools) {
    if (tool.is_custom) spec.options.custom_tools.push_back(tool.name);
  }
  if (format.has_tools()) spec.options.call_id_seed = seeds_.next();
  TokenizedPrompt& prompt = spec.prompts.emplace_back();
  prompt.ids = service_.tokenizer->encode(*text, request.add_special_tokens.value_or(false));
  truncate(prompt.ids, max_prompt_tokens(request, 1), request.keep_prompt_start);
  auto finished = finish(request, std::move(spec), request.conversation.messages_name, header_id, constraint);
  if (finished.has_error()) return finished;
  if (!request.prediction.empty()) attach_prediction(request.prediction, *finished);
  for (sched::GenerateRequest& target : finished->requests) target.reasoning_limit = *limit;
  return finished;
}

ApiResult<std::string> InputProcessor::render_prompt(const text::ChatTemplate& chat_template,
                                                     const openai::ChatRequest& request, text::OutputFormat& format,
                                                     OutputConstraint& constraint) const {
  auto text = renderer_.render(chat_template, request.conversation);
  if (text.has_error()) return text;
  const ChatFormat chat_format(options_, chat_template);
  format = chat_format.make_output_format(request, *text);
  auto restriction = chat_format.make_output_constraint(request, format);
  if (restriction.has_error()) return restriction.error();
  constraint = *std::move(restriction);
  format.prefix = constraint.prefix;
  format.has_constrained_calls = constraint.calls.has_value();
  *text += constraint.prefix;
  return text;
}

ApiResult<size_t> InputProcessor::count_prompt_tokens(const openai::ChatRequest& request) const {
  if (auto unknown = check_model(request.model)) return *unknown;
  auto chat_template = renderer_.choose_template(request.conversation);
  if (chat_template.has_error()) return chat_template.error();
  text::OutputFormat format;
  OutputConstraint constraint;
  auto text = render_prompt(**chat_template, request, format, constraint);
  if (text.has_error()) return text.error();
  return service_.tokenizer->encode(*text, request.add_special_tokens.value_or(false)).size();
}

// No more than an output can hold, and nothing that the model cannot draw.
void InputProcessor::attach_prediction(const std::string& prediction, GenerationSpec& spec) const {
  const sched::ModelInfo& model = service_.engine->model_info();
  std::vector<TokenId> ids = service_.tokenizer->encode(prediction, false);
  ids.resize(std::min<size_t>(ids.size(), model.context_length));
  const auto vocab_size = static_cast<int64_t>(model.vocab_size);
  ids.erase(std::ranges::find_if(ids, [vocab_size](TokenId id) { return id >= vocab_size; }), ids.end());
  for (sched::GenerateRequest& request : spec.requests) request.prediction = ids;
  spec.options.has_prediction = true;
}

uint32_t InputProcessor::max_prompt_tokens(const openai::CommonRequest& request, uint32_t default_max_tokens) const {
  if (!request.truncate_prompt_tokens) return std::numeric_limits<uint32_t>::max();
  if (*request.truncate_prompt_tokens > 0) return static_cast<uint32_t>(*request.truncate_prompt_tokens);
  const uint32_t context = service_.engine->model_info().context_length;
  const uint32_t output = request.max_tokens.value_or(default_max_tokens);
  return output < context ? context - output : 1;
}

std::optional<ApiError> InputProcessor::check_vocabulary(const std::vector<TokenId>& ids,
                                                         const PromptLabel& label) const {
  const auto vocab_size = static_cast<int64_t>(service_.engine->model_info().vocab_size);
  const auto unknown = std::ranges::find_if(ids, [vocab_size](TokenId id) { return id >= vocab_size; });
  if (unknown == ids.end()) return std::nullopt;
  return bad_request(label.param, "{}: token {} ('{}') of the tokenizer is outside the model's vocabulary of {} tokens",
                     label.name, *unknown, service_.tokenizer->id_to_token(*unknown), vocab_size);
}

ApiResult<uint32_t> InputProcessor::resolve_max_tokens(const openai::CommonRequest& request, size_t prompt_tokens,
                                                       const PromptLabel& label, bool chat) const {
  const uint32_t context = service_.engine->model_info().context_length;
  if (prompt_tokens == 0) return bad_request(label.param, "{}: it has no tokens, wanted at least 1", label.name);
  const bool scoring = request.max_tokens == 0u;
  if (request.fills_context && prompt_tokens >= context) {
    // Claude Code compacts its conversation where it finds these words.
    return context_exceeded(
        bad_request(label.param, "prompt is too long: {} tokens > {} maximum", prompt_tokens, context - 1));
  }
  if (prompt_tokens > context || (prompt_tokens == context && !scoring)) {
    return context_exceeded(bad_request(
        label.param,
        "this model's maximum context length is {} tokens, and {} has {}, which leaves no room for an output: shorten "
        "it, or have it cut by truncate_prompt_tokens",
        context, label.name, prompt_tokens));
  }
  const auto room = static_cast<uint32_t>(context - prompt_tokens);
  if (!request.max_tokens) return chat ? room : std::min(kDefaultMaxTokens, room);
  if (request.fills_context) return std::min(*request.max_tokens, room);
  if (*request.max_tokens > room) {
    return context_exceeded(bad_request(request.max_tokens_name,
                                        "this model's maximum context length is {} tokens, of which the {} of {} leave "
                                        "{}: lower {} from {} to that, or shorten the prompt",
                                        context, prompt_tokens, label.name, room, request.max_tokens_name,
                                        *request.max_tokens));
  }
  return *request.max_tokens;
}

tensor::SamplingParams InputProcessor::sampling(const openai::CommonRequest& request) const {
  const GenerationDefaults& defaults = service_.defaults;
  tensor::SamplingParams params;
  params.temperature = request.temperature.value_or(defaults.temperature);
  params.top_p = request.top_p.value_or(defaults.top_p);
  params.min_p = request.min_p.value_or(defaults.min_p);
  params.top_k = request.top_k.value_or(defaults.top_k);
  params.repetition_penalty = request.repetition_penalty.value_or(defaults.repetition_penalty);
  if (params.top_p == 0.0f) {
    // The limit of ever less: the most probable token alone.
    params.temperature = 0.0f;
    params.top_p = 1.0f;
  }
  params.frequency_penalty = request.frequency_penalty;
  params.presence_penalty = request.presence_penalty;
  params.logit_bias = request.logit_bias;
  params.top_logprobs = request.top_logprobs;
  params.min_tokens = request.min_tokens;
  if (!request.ignore_eos) params.stop_token_ids = defaults.eos_token_ids;
  params.stop_token_ids.insert(params.stop_token_ids.end(), request.stop_token_ids.begin(),
                               request.stop_token_ids.end());
  std::ranges::sort(params.stop_token_ids);
  const auto repeated = std::ranges::unique(params.stop_token_ids);
  params.stop_token_ids.erase(repeated.begin(), repeated.end());
  return params;
}

bool InputProcessor::has_special_tags(text::ReasoningFormat format) const {
  const text::Tokenizer& tokenizer = *service_.tokenizer;
  const text::ReasoningRow& row = text::row_of(format);
  std::string tags(row.end);
  tags += row.content_open;
  for (const std::string_view tag : row.content_tags) tags += tag;
  const std::vector<TokenId> ids = tokenizer.encode(tags, false);
  return std::ranges::any_of(ids, [&tokenizer](TokenId id) { return tokenizer.is_special(id); });
}

void InputProcessor::fill_options(const openai::CommonRequest& request, GenerationSpec& spec) const {
  spec.n = request.n;
  spec.stream = request.stream;
  spec.make_writer = [usage = openai::ChunkUsage{request.include_usage, request.continuous_usage}](
                         const openai::ResponseInfo& info, const ChoiceOptions& options) {
    return std::make_unique<openai::CompletionWriter>(info, options, usage);
  };
  spec.options.tokenizer = service_.tokenizer;
  spec.options.stop = request.stop;
  spec.options.user_stop_token_ids = request.stop_token_ids;
  spec.options.min_tokens = request.min_tokens;
  spec.options.include_stop = request.include_stop;
  // Some models' tags are special tokens.
  const text::OutputFormat& output = spec.options.output_format;
  const bool has_tags = output.has_tools() || (output.reasoning && has_special_tags(*output.reasoning));
  spec.options.skip_special_tokens = request.skip_special_tokens && !has_tags;
  spec.options.logprobs = request.top_logprobs >= 0;
  spec.options.tokens_as_ids = request.tokens_as_ids;
  spec.options.top_logprobs = static_cast<uint32_t>(std::max(request.top_logprobs, 0));
  spec.options.prompt_logprobs = request.prompt_logprobs >= 0;
  spec.options.top_prompt_logprobs = static_cast<uint32_t>(std::max(request.prompt_logprobs, 0));
  const openai::ResponseKind kind = spec.info.kind;
  spec.info = make_info(request);
  spec.info.kind = kind;
}

openai::ResponseInfo InputProcessor::make_info(const openai::CommonRequest& request) const {
  return {.created_s = unix_seconds(),
          .model = request.model.empty() ? options_.served_model_name : request.model,
          .fingerprint = fingerprint_of(options_.served_model_name),
          .token_ids = request.return_token_ids};
}

ApiResult<GenerationSpec> InputProcessor::finish(const openai::CommonRequest& request, GenerationSpec spec,
                                                 std::string_view prompt_param, const std::string& header_id,
                                                 const OutputConstraint& constraint) const {
  fill_options(request, spec);
  std::shared_ptr<const grammar::Grammar> grammar;
  std::shared_ptr<const std::string> grammar_source;
  if (!constraint.is_unconstrained()) {
    auto found = grammar_cache_.get_or_compile(constraint);
    if (found.has_error()) return found.error();
    grammar = std::move(*found);
    grammar_source = std::make_shared<const std::string>(encode_constraint(constraint));
  }
  const tensor::SamplingParams params = sampling(request);
  spec.options.stop_token_ids = params.stop_token_ids;
  const bool chat = spec.info.kind == openai::ResponseKind::kChat;
  for (const TokenizedPrompt& prompt : spec.prompts) {
    const auto index = &prompt - spec.prompts.data();
    const PromptLabel label{prompt_param, spec.prompts.size() == 1 ? std::string(prompt_param)
                                                                   : fmt::format("{}[{}]", prompt_param, index)};
    auto budget = resolve_max_tokens(request, prompt.ids.size(), label, chat);
    if (budget.has_error()) return budget.error();
    if (auto unknown = check_vocabulary(prompt.ids, label)) return *unknown;
    if (request.min_tokens > *budget) {
      return bad_request("min_tokens", "min_tokens: found {}, wanted at most max_tokens {}", request.min_tokens,
                         *budget);
    }
    for (uint32_t i = 0; i < request.n; ++i) {
      sched::GenerateRequest& target = spec.requests.emplace_back();
      target.prompt = prompt.ids;
      target.sampling = params;
      target.sampling.seed = request.seed ? *request.seed + i : seeds_.next();
      target.max_tokens = *budget;
      target.prompt_top_logprobs = request.prompt_logprobs;
      if (spec.options.echo) target.prompt_top_logprobs = std::max(target.prompt_top_logprobs, request.top_logprobs);
      if (*budget == 0) target.prompt_top_logprobs = std::max(target.prompt_top_logprobs, 0);
      // The complement of the smaller number is the larger one, also for the smallest number that there is.
      target.priority = options_.low_priority_first ? ~request.priority : request.priority;
      target.cache_salt = request.cache_salt;
      target.ring = request.ring;
      target.grammar = grammar;
      target.grammar_source = grammar_source;
    }
  }
  if (auto too_many = check_logprobs(spec)) return *too_many;
  spec.has_own_id = !request.request_id.empty();
  spec.set_id((chat ? "chatcmpl-" : "cmpl-") + (spec.has_own_id ? request.request_id : header_id));
  return spec;
}

}  // namespace millrace::server
