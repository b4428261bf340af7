#include "server/responses_input.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/json_value.h"
#include "server/generation_spec.h"

namespace millrace::server {
namespace {

using openai::ApiError;
using openai::ApiResult;
using openai::ChatMessage;
using responses::Compaction;
using responses::StoredItem;

constexpr std::string_view kTooLong = "context_length_exceeded";

/// Returns where the messages may begin that stay when older ones are dropped: at each message of a user but the first.
std::vector<size_t> cut_points(const std::vector<ChatMessage>& messages) {
  std::vector<size_t> points;
  for (size_t i = 0; i < messages.size(); ++i) {
    if (messages[i].role == "user") points.push_back(i);
  }
  if (!points.empty()) points.erase(points.begin());
  return points;
}

/// Drops the messages before `begin`, except a system message at the start.
void drop_before(std::vector<ChatMessage>& messages, size_t begin) {
  const bool has_system = !messages.empty() && messages.front().role == "system";
  messages.erase(messages.begin() + (has_system ? 1 : 0), messages.begin() + static_cast<ptrdiff_t>(begin));
}

std::vector<StoredItem> take_items(std::vector<std::string> texts) {
  std::vector<StoredItem> items;
  for (std::string& text : texts) {
    const auto document = JsonDocument::parse(text);
    std::string_view id;
    (void)document->root()["id"].get(id);
    StoredItem& item = items.emplace_back();
    item.id = id;
    item.json = std::move(text);
  }
  return items;
}

/// Drops the oldest items until the rest has at most `max_bytes`.
void keep_newest(std::vector<StoredItem>& items, size_t max_bytes) {
  size_t bytes = 0;
  size_t kept = 0;
  while (kept < items.size() && bytes + items[items.size() - kept - 1].json.size() <= max_bytes) {
    bytes += items[items.size() - kept - 1].json.size();
    ++kept;
  }
  items.erase(items.begin(), items.end() - static_cast<ptrdiff_t>(kept));
}

/// Returns the temperature and top_p that are used, as the response reports them.
responses::ResponseHead make_head(responses::ResponsesRequest& request, const GenerationSpec& spec,
                                  const GenerationDefaults& defaults) {
  responses::ResponseHead head{.echo = std::move(request.echo),
                               .temperature = request.temperature.value_or(defaults.temperature),
                               .top_p = request.top_p.value_or(defaults.top_p)};
  if (spec.requests.empty()) return head;
  head.temperature = spec.requests.front().sampling.temperature;
  head.top_p = spec.requests.front().sampling.top_p;
  return head;
}

}  // namespace

ApiResult<ResponsesInput::Request> ResponsesInput::parse(const std::string& body, std::string_view id,
                                                         Compaction compaction) const {
  auto parsed = responses::parse_responses_request(body, input_processor_.limits(), store_, id, compaction);
  if (parsed.has_error()) return parsed.error();
  if (auto unknown = input_processor_.check_model(parsed->model)) return *unknown;
  return parsed;
}

GenerationRoutes::Spec ResponsesInput::prepare_fitting(const Request& request) const {
  auto whole = input_processor_.prepare(openai::ChatRequest(request), {});
  const bool is_too_long = whole.has_error() && whole.error().code == kTooLong;
  if (!is_too_long || !request.drops_oldest) return whole;
  // The fewest that are to be dropped: a later beginning gives a shorter prompt.
  const std::vector<size_t> points = cut_points(request.conversation.messages);
  size_t low = 0;
  size_t high = points.size();
  while (low < high) {
    const size_t middle = (low + high) / 2;
    openai::ChatRequest shorter = request;
    drop_before(shorter.conversation.messages, points[middle]);
    auto spec = input_processor_.prepare(std::move(shorter), {});
    const bool still_too_long = spec.has_error() && spec.error().code == kTooLong;
    if (still_too_long) {
      low = middle + 1;
    } else {
      high = middle;
      whole = std::move(spec);
    }
  }
  return whole;
}

GenerationSpec ResponsesInput::make_refusal(const Request& request, ApiError error) const {
  GenerationSpec spec;
  spec.info = input_processor_.make_info(request);
  spec.stream = true;
  spec.fails_in_stream = true;
  spec.refusal = std::move(error);
  return spec;
}

GenerationRoutes::Spec ResponsesInput::prepare(const HttpRequest& request, Compaction compaction,
                                               ResponsesPlan& plan) const {
  const std::string hex = ids_.hex_id();
  auto parsed = parse(request.body, hex, compaction);
  if (parsed.has_error()) return parsed.error();
  if (parsed->background && options_.response_store_bytes == 0) {
    return openai::bad_request("background", "background: this server stores no responses (--response-store-mib)");
  }
  plan.stream = parsed->stream;
  GenerationRoutes::Spec spec = prepare_fitting(*parsed);
  if (spec.has_error()) {
    if (!parsed->stream || spec.error().code != kTooLong) return spec;
    spec = make_refusal(*parsed, spec.error());
  }
  spec->has_own_id = !parsed->request_id.empty();
  spec->set_id("resp_" + (spec->has_own_id ? parsed->request_id : hex));
  auto input = std::make_shared<responses::WriterInput>();
  input->head = make_head(*parsed, *spec, service_.defaults);
  input->origins = std::move(parsed->origins);
  input->input = take_items(std::move(parsed->input));
  input->compaction = parsed->compaction;
  // A byte for each token of the context leaves most of it for what follows.
  if (compaction == Compaction::kObject) keep_newest(input->input, service_.engine->model_info().context_length);
  if (parsed->store) input->store = &store_;
  input->is_background = parsed->background;
  if (parsed->background) {
    // The response is made as a stream, which others may follow.
    input->live = std::make_shared<responses::LiveResponse>();
    spec->stream = true;
    spec->fails_in_stream = true;
  }
  spec->make_writer = [input](const openai::ResponseInfo& info, const ChoiceOptions& options) {
    return std::make_unique<responses::EventWriter>(info, options, input);
  };
  plan.writer_input = std::move(input);
  return spec;
}

ApiResult<size_t> ResponsesInput::count_tokens(const HttpRequest& request) const {
  auto parsed = parse(request.body, {}, Compaction::kNone);
  if (parsed.has_error()) return parsed.error();
  return input_processor_.count_prompt_tokens(*parsed);
}

}  // namespace millrace::server
