#include "server/pooling_input.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "sched/head/engine.h"
#include "sched/head/model_info.h"
#include "server/pooling_model.h"
#include "server/pooling_spec.h"
#include "server/prompt_offsets.h"

namespace millrace::server {
namespace {

using openai::ApiError;
using openai::ApiResult;
using openai::bad_request;

/// The chat of Qwen3-Reranker, as its model card has it. A score follows from the token after it.
constexpr std::string_view kQwen3Start =
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    "provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n<|im_start|>user\n";
constexpr std::string_view kQwen3End = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";
constexpr std::string_view kQwen3Instruction =
    "Given a web search query, retrieve relevant passages that answer the query";

int64_t seconds_since_epoch() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::seconds>(now).count();
}

void append(std::vector<TokenId>& ids, const std::vector<TokenId>& more) {
  ids.insert(ids.end(), more.begin(), more.end());
}

}  // namespace

void PoolingSpec::set_id(std::string id) {
  info.id = std::move(id);
  for (size_t i = 0; i < requests.size(); ++i) requests[i].id = fmt::format("{}-{}", info.id, i);
}

std::string PoolingInput::Label::name() const {
  return count == 1 ? std::string(param) : fmt::format("{}[{}]", param, index);
}

ApiResult<PoolingSpec> PoolingInput::begin(const openai::PoolingRequest& request, std::string_view id_prefix,
                                           const std::string& header_id) const {
  if (auto unknown = input_processor_.check_model(request.model)) return *unknown;
  PoolingSpec spec;
  spec.has_own_id = !request.request_id.empty();
  spec.info = {.id = fmt::format("{}-{}", id_prefix, spec.has_own_id ? request.request_id : header_id),
               .model = request.model.empty() ? options_.served_model_name : request.model,
               .created_s = seconds_since_epoch()};
  return spec;
}

ApiResult<PoolingSpec> PoolingInput::prepare(const openai::EmbeddingRequest& request,
                                             const std::string& header_id) const {
  const PoolingModel& model = *service_.pooling;
  if (model.scores) return bad_request("input", "this model scores pairs of texts: wanted /rerank or /score");
  const size_t width = model.width(service_.engine->model_info().hidden_size);
  const auto allowed = [&] {
    return model.dimensions.empty() ? request.dimensions <= width
                                    : std::ranges::find(model.dimensions, request.dimensions) != model.dimensions.end();
  };
  if (request.dimensions > 0 && !model.allows_dimensions) {
    return bad_request("dimensions",
                       "dimensions: the model's config.json does not say is_matryoshka, so its vectors of {} numbers "
                       "are not cut (--is-matryoshka)",
                       width);
  }
  if (request.dimensions > 0 && !allowed()) {
    return bad_request("dimensions", "dimensions: found {}, wanted {}", request.dimensions,
                       model.dimensions.empty() ? fmt::format("at most {}", width)
                                                : fmt::format("one of {}", fmt::join(model.dimensions, ", ")));
  }
  auto spec = begin(request, "embd", header_id);
  if (spec.has_error()) return spec;
  for (size_t i = 0; i < request.inputs.size(); ++i) {
    const auto* text = std::get_if<std::string>(&request.inputs[i]);
    auto prompt = text != nullptr ? encode(request, *text) : std::get<std::vector<TokenId>>(request.inputs[i]);
    const Label label{.param = "input", .index = i, .count = request.inputs.size()};
    if (auto refusal = add(request, {.ids = std::move(prompt)}, label, *spec)) return *refusal;
  }
  spec->set_id(std::move(spec->info.id));
  return spec;
}

ApiResult<PoolingSpec> PoolingInput::prepare(const openai::PairRequest& request, std::string_view id_prefix,
                                             const std::string& header_id) const {
  auto spec = begin(request, id_prefix, header_id);
  if (spec.has_error()) return spec;
  const bool scores = service_.pooling->scores;
  for (size_t i = 0; !scores && i < request.queries.size(); ++i) {
    const Label label{.param = request.query_param, .index = i, .count = request.queries.size()};
    if (auto refusal = add(request, {.ids = encode(request, request.queries[i])}, label, *spec)) return *refusal;
  }
  for (size_t i = 0; i < request.pair_count(); ++i) {
    const Label label{.param = request.document_param, .index = i, .count = request.pair_count()};
    Prompt prompt = scores ? encode_pair(request, i) : Prompt{.ids = encode(request, document_of(request, i))};
    if (auto refusal = add(request, std::move(prompt), label, *spec)) return *refusal;
  }
  spec->set_id(std::move(spec->info.id));
  return spec;
}

std::vector<TokenId> PoolingInput::encode(const openai::PoolingRequest& request, const std::string& text) const {
  return service_.tokenizer->encode(text, request.add_special_tokens.value_or(true));
}

std::string PoolingInput::document_of(const openai::PairRequest& request, size_t pair) const {
  const std::string& text = request.documents[pair];
  if (request.max_document_tokens == 0) return text;
  std::vector<TokenId> ids = service_.tokenizer->encode(text, false);
  if (ids.size() <= request.max_document_tokens) return text;
  ids.resize(request.max_document_tokens);
  return service_.tokenizer->decode(ids, false);
}

PoolingInput::Prompt PoolingInput::encode_pair(const openai::PairRequest& request, size_t pair) const {
  const std::string& query = request.queries[request.query_of(pair)];
  const std::string document = document_of(request, pair);
  const text::Tokenizer& tokenizer = *service_.tokenizer;
  if (service_.pooling->rerank_template == RerankTemplate::kPair) {
    auto both = tokenizer.encode_pair(query, document, request.add_special_tokens.value_or(true));
    const auto second = std::ranges::find(both.type_ids, 1u);
    const auto first_count = static_cast<size_t>(second - both.type_ids.begin());
    return {.ids = std::move(both.ids), .second_text = second == both.type_ids.end() ? 0 : first_count};
  }
  const std::string_view instruction = request.instruction.empty() ? kQwen3Instruction : request.instruction;
  std::vector<TokenId> ids = tokenizer.encode(kQwen3Start, false);
  append(ids, tokenizer.encode(fmt::format("<Instruct>: {}\n<Query>: {}\n<Document>: {}", instruction, query, document),
                               false));
  append(ids, tokenizer.encode(kQwen3End, false));
  return {.ids = std::move(ids)};
}

void PoolingInput::truncate(const openai::PoolingRequest& request, Prompt& cut) const {
  std::vector<TokenId>& prompt = cut.ids;
  if (!request.truncate_prompt_tokens) return;
  const int32_t wanted = *request.truncate_prompt_tokens;
  const size_t most = wanted > 0 ? static_cast<size_t>(wanted) : service_.engine->model_info().context_length;
  if (prompt.size() <= most) return;
  // The tokens that the tokenizer adds to every text stay: the last one of many models is what they pool.
  const std::vector<TokenId> added =
      request.add_special_tokens.value_or(true) ? service_.tokenizer->encode("", true) : std::vector<TokenId>();
  const size_t start = count_added_start(*service_.tokenizer, added);
  const size_t end = added.size() - start;
  const bool has_added = prompt.size() >= added.size() && most > added.size() &&
                         std::equal(added.begin(), added.begin() + static_cast<ptrdiff_t>(start), prompt.begin()) &&
                         std::equal(added.begin() + static_cast<ptrdiff_t>(start), added.end(),
                                    prompt.end() - static_cast<ptrdiff_t>(end));
  const auto first = prompt.begin() + static_cast<ptrdiff_t>(has_added ? start : 0);
  const auto last = prompt.end() - static_cast<ptrdiff_t>(has_added ? end : 0);
  const auto excess = static_cast<ptrdiff_t>(prompt.size() - most);
  const auto erased = request.keep_prompt_start ? last - excess : first;
  const auto erased_at = static_cast<size_t>(erased - prompt.begin());
  if (cut.second_text > erased_at) {
    cut.second_text = std::max(erased_at, cut.second_text - std::min(cut.second_text, static_cast<size_t>(excess)));
  }
  prompt.erase(erased, erased + excess);
}

std::optional<ApiError> PoolingInput::add(const openai::PoolingRequest& request, Prompt pair, const Label& label,
                                          PoolingSpec& spec) const {
  const sched::ModelInfo& model = service_.engine->model_info();
  truncate(request, pair);
  std::vector<TokenId>& prompt = pair.ids;
  if (prompt.empty()) return bad_request(label.param, "{}: it has no tokens, wanted at least 1", label.name());
  if (prompt.size() > model.context_length) {
    ApiError too_long = bad_request(label.param,
                                    "this model's maximum context length is {} tokens, and {} has {}: shorten it, or "
                                    "have it cut by truncate_prompt_tokens",
                                    model.context_length, label.name(), prompt.size());
    too_long.code = "context_length_exceeded";
    return too_long;
  }
  const auto vocab_size = static_cast<int64_t>(model.vocab_size);
  const auto unknown = std::ranges::find_if(prompt, [vocab_size](TokenId id) { return id >= vocab_size; });
  if (unknown != prompt.end()) {
    return bad_request(label.param, "{}: token {} is outside the model's vocabulary of {} tokens", label.name(),
                       *unknown, vocab_size);
  }
  spec.info.prompt_tokens += prompt.size();
  spec.requests.push_back({.prompt = std::move(prompt),
                           .max_tokens = 0,
                           .pooling = service_.pooling->pooling,
                           .second_text = static_cast<uint32_t>(pair.second_text),
                           .priority = options_.low_priority_first ? ~request.priority : request.priority,
                           .cache_salt = request.cache_salt,
                           .ring = request.ring});
  return std::nullopt;
}

}  // namespace millrace::server
