#include "server/responses_routes.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/json.h"
#include "server/exchange.h"
#include "server/generation_spec.h"

namespace millrace::server {
namespace {

using openai::ApiError;
using openai::ApiResult;
using openai::bad_request;
using openai::error_response;
using responses::Compaction;
using responses::StoredItem;

constexpr std::string_view kPath = "/v1/responses/";
constexpr size_t kDefaultItems = 20;
constexpr size_t kMaxItems = 100;

/// Returns the id in the path of a request, which `suffix` follows.
std::string id_of(const HttpRequest& request, std::string_view suffix = {}) {
  return request.path.substr(kPath.size(), request.path.size() - kPath.size() - suffix.size());
}

ApiError not_found(std::string_view id) {
  return {404, fmt::format("response '{}' is not stored", id.substr(0, 256)), "response_id"};
}

HttpResponse reply_with(std::string body) {
  HttpResponse response;
  response.body = std::move(body);
  return response;
}

/// Returns the value of a parameter of the query, which is absent if it is empty.
std::string query_value(std::string_view query, std::string_view name) {
  while (!query.empty()) {
    const std::string_view pair = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(query.size(), pair.size() + 1));
    if (pair.starts_with(name) && pair.substr(name.size()).starts_with('=')) {
      return percent_decode(pair.substr(name.size() + 1));
    }
  }
  return {};
}

/// Reads a number of the query; `otherwise` where it is absent.
ApiResult<size_t> query_number(std::string_view query, std::string_view name, size_t low, size_t high,
                               size_t otherwise) {
  const std::string text = query_value(query, name);
  if (text.empty()) return otherwise;
  size_t number = 0;
  const char* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, number);
  if (parsed.ec == std::errc() && parsed.ptr == end && number >= low && number <= high) return number;
  return bad_request(name, "{}: found '{}', wanted an integer in [{}, {}]", name, text.substr(0, 64), low, high);
}

/// Returns the sequence number of the first event that a query asks for; nothing if it asks for the object.
ApiResult<std::optional<size_t>> first_event(std::string_view query) {
  constexpr size_t kMaxNumber = size_t{1} << 40;
  const std::string stream = query_value(query, "stream");
  const bool is_after = !query_value(query, "starting_after").empty();
  auto after = query_number(query, "starting_after", 0, kMaxNumber, 0);
  if (after.has_error()) return after.error();
  if (stream != "true" && stream != "1") return std::optional<size_t>();
  return std::optional<size_t>(is_after ? *after + 1 : 0);
}

void write_list(JsonWriter& json, std::span<const StoredItem> items, bool has_more) {
  const auto write_id = [&json](const char* name, const StoredItem* item) {
    json.key(name);
    if (item == nullptr) {
      json.null();
    } else {
      json.value(item->id);
    }
  };
  json.begin_object().member("object", "list").key("data").begin_array();
  for (const StoredItem& item : items) json.raw(item.json);
  json.end_array();
  write_id("first_id", items.empty() ? nullptr : &items.front());
  write_id("last_id", items.empty() ? nullptr : &items.back());
  json.member("has_more", has_more).end_object();
}

}  // namespace

void ResponsesRoutes::add_to(Router& router) {
  router.add({.method = Method::kPost,
              .path = "/v1/responses",
              .handler = [this](Exchange& exchange) { return create(exchange, Compaction::kNone); },
              .takes_json = true,
              .doc = {.summary = "Generate a response",
                      .request = "ResponsesRequest",
                      .response = "ResponseObject",
                      .event = "ResponseEvent"}});
  router.add({.method = Method::kPost,
              .path = "/v1/responses/compact",
              .handler = [this](Exchange& exchange) { return create(exchange, Compaction::kObject); },
              .takes_json = true,
              .doc = {.summary = "Replace a conversation by a summary",
                      .request = "ResponsesRequest",
                      .response = "CompactionObject"}});
  router.add(
      {.method = Method::kPost,
       .path = "/v1/responses/input_tokens",
       .handler = [this](const HttpRequest& request) { return count_tokens(request); },
       .takes_json = true,
       .uses_worker = true,
       .doc = {.summary = "Count the tokens of a request", .request = "ResponsesRequest", .response = "InputTokens"}});
  add_stored_to(router);
}

void ResponsesRoutes::add_stored_to(Router& router) {
  router.add({.method = Method::kPost,
              .path = "/v1/responses/{id}/cancel",
              .handler = [this](Exchange& exchange) { return cancel(exchange); },
              .doc = {.summary = "Cancel a response in the background", .response = "ResponseObject"}});
  router.add({.method = Method::kGet,
              .path = "/v1/responses/{id}/input_items",
              .handler = [this](const HttpRequest& request) { return list_input(request); },
              .doc = {.summary = "What the model was given",
                      .response = "ItemList",
                      .query = R"({"name":"limit","in":"query","schema":{"type":"integer","minimum":1,"maximum":100}},)"
                               R"({"name":"order","in":"query","schema":{"enum":["asc","desc"]}},)"
                               R"({"name":"after","in":"query","schema":{"type":"string"}})"}});
  router.add({.method = Method::kGet,
              .path = "/v1/responses/{id}",
              .handler = [this](Exchange& exchange) { return retrieve(exchange); },
              .doc = {.summary = "A stored response, or its events with ?stream=true",
                      .response = "ResponseObject",
                      .query = R"({"name":"stream","in":"query","schema":{"type":"boolean"}},)"
                               R"({"name":"starting_after","in":"query","schema":{"type":"integer","minimum":0}})",
                      .event = "ResponseEvent"}});
  router.add({.method = Method::kDelete,
              .path = "/v1/responses/{id}",
              .handler = [this](const HttpRequest& request) { return remove(request); },
              .doc = {.summary = "Forget a stored response", .response = "DeletedResponse"}});
}

asio::awaitable<ResponsesRoutes::Reply> ResponsesRoutes::create(Exchange& exchange, Compaction compaction) {
  auto plan = std::make_shared<ResponsesPlan>();
  GenerationRoutes::Spec spec = co_await generation_.prepare(
      exchange,
      [this, plan, compaction](const HttpRequest& request) { return input_.prepare(request, compaction, *plan); });
  if (spec.has_error()) co_return exchange.make_error(spec.error());
  if (plan->writer_input->live == nullptr) {
    ExchangeSink sink(exchange);
    co_await generation_.serve(std::move(*spec), sink);
    co_return std::nullopt;
  }
  exchange.record.id = spec->info.id;
  const auto response = background_.start(std::move(*spec), plan->writer_input);
  if (!plan->stream) co_return reply_with(response->live().object);
  co_await follow(exchange, response, 0);
  co_return std::nullopt;
}

asio::awaitable<ResponsesRoutes::Reply> ResponsesRoutes::retrieve(Exchange& exchange) {
  const std::string id = id_of(exchange.request);
  auto next = first_event(exchange.request.query);
  if (next.has_error()) co_return error_response(next.error());
  if (exchange.request.method == Method::kHead) next->reset();
  if (const auto running = background_.find(id); running != nullptr) {
    if (!*next) co_return reply_with(running->live().object);
    co_await follow(exchange, running, **next);
    co_return std::nullopt;
  }
  const auto stored = store_.find(id);
  if (stored == nullptr) co_return error_response(not_found(id));
  if (!*next) co_return reply_with(stored->object);
  co_await replay(exchange, stored, **next);
  co_return std::nullopt;
}

asio::awaitable<void> ResponsesRoutes::follow(Exchange& exchange, BackgroundResponses::Pointer response, size_t next) {
  const auto& events = response->live().events;
  bool goes_on = co_await exchange.begin_events();
  std::string unsent;
  while (goes_on) {
    for (; next < events.size(); ++next) unsent += events[next];
    if (!unsent.empty()) {
      goes_on = co_await exchange.connection.write_stream(unsent);
    } else if (response->ended) {
      break;
    } else {
      (void)co_await response->changed.wait();
    }
  }
  if (goes_on) (void)co_await exchange.connection.end_stream();
}

asio::awaitable<void> ResponsesRoutes::replay(Exchange& exchange, responses::ResponseStore::Pointer response,
                                              size_t next) {
  bool goes_on = co_await exchange.begin_events();
  for (; goes_on && next < response->events.size(); ++next) {
    std::string event = response->events[next];
    goes_on = co_await exchange.connection.write_stream(event);
  }
  if (goes_on) (void)co_await exchange.connection.end_stream();
}

asio::awaitable<ResponsesRoutes::Reply> ResponsesRoutes::cancel(Exchange& exchange) {
  const std::string id = id_of(exchange.request, "/cancel");
  if (const auto running = background_.find(id); running != nullptr) {
    background_.cancel(id);
    co_await BackgroundResponses::wait_for_end(running);
    co_return reply_with(running->live().object);
  }
  const auto stored = store_.find(id);
  if (stored == nullptr) co_return error_response(not_found(id));
  if (stored->is_background) co_return reply_with(stored->object);
  co_return error_response(bad_request("response_id", "response '{}' is not one in the background", id.substr(0, 256)));
}

HttpResponse ResponsesRoutes::remove(const HttpRequest& request) {
  const std::string id = id_of(request);
  if (background_.find(id) != nullptr) {
    return error_response({409, fmt::format("response '{}' is in progress: cancel it first", id), "response_id"});
  }
  if (!store_.erase(id)) return error_response(not_found(id));
  std::string body;
  JsonWriter(body).begin_object().member("id", id).member("object", "response").member("deleted", true).end_object();
  return reply_with(std::move(body));
}

HttpResponse ResponsesRoutes::list_input(const HttpRequest& request) const {
  const std::string id = id_of(request, "/input_items");
  const auto limit = query_number(request.query, "limit", 1, kMaxItems, kDefaultItems);
  if (limit.has_error()) return error_response(limit.error());
  const std::string order = query_value(request.query, "order");
  if (!order.empty() && order != "asc" && order != "desc") {
    return error_response(bad_request("order", "order: found '{}', wanted asc or desc", order.substr(0, 64)));
  }
  const auto running = background_.find(id);
  const auto stored = running == nullptr ? store_.find(id) : nullptr;
  if (running == nullptr && stored == nullptr) return error_response(not_found(id));
  std::vector<StoredItem> items = running != nullptr ? running->input->input : stored->input;
  if (order != "asc") std::ranges::reverse(items);
  const std::string after = query_value(request.query, "after");
  if (!after.empty()) {
    const auto last_seen = std::ranges::find(items, after, &StoredItem::id);
    if (last_seen == items.end()) {
      return error_response(bad_request("after", "after: '{}' is no item of the input", after.substr(0, 256)));
    }
    items.erase(items.begin(), last_seen + 1);
  }
  const bool has_more = items.size() > *limit;
  std::string body;
  JsonWriter json(body);
  write_list(json, std::span(items).first(std::min(items.size(), *limit)), has_more);
  return reply_with(std::move(body));
}

HttpResponse ResponsesRoutes::count_tokens(const HttpRequest& request) const {
  const auto count = input_.count_tokens(request);
  if (count.has_error()) return error_response(count.error());
  std::string body;
  JsonWriter(body).begin_object().member("object", "response.input_tokens").member("input_tokens", *count).end_object();
  return reply_with(std::move(body));
}

}  // namespace millrace::server
