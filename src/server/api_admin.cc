#include <fmt/format.h>

#include <boost/asio/cancellation_state.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/system/system_error.hpp>
#include <exception>

#include "async/task_group.h"
#include "server/api.h"
#include "server/observe/process_metrics.h"
#include "server/openapi.h"

/// The endpoints of Api that answer at once.
namespace millrace::server {
namespace {

using openai::ApiError;
using openai::error_response;

void write_model(JsonWriter& json, std::string_view name, std::string_view root, const sched::ModelInfo& info,
                 int64_t created_s) {
  json.begin_object().member("id", name).member("object", "model");
  json.member("created", created_s).member("owned_by", "millrace").member("root", root);
  json.key("parent").null();
  json.member("max_model_len", info.context_length).end_object();
}

HttpResponse preflight(const std::string& allowed) {
  HttpResponse response;
  response.status = 204;
  response.content_type.clear();
  response.headers = {{"Allow", allowed},
                      {"Access-Control-Allow-Methods", allowed},
                      {"Access-Control-Allow-Headers", "Authorization, *"},  // the star means all but that one
                      {"Access-Control-Max-Age", "86400"}};
  return response;
}

}  // namespace

HttpResponse Api::dispatch(const HttpRequest& request, const RouteMatch& match) {
  HttpResponse response;
  switch (match.route) {
    case Route::kModels:
    case Route::kModel: return handle_models(match);
    case Route::kHealth: return handle_health();
    case Route::kLivez: response.body = R"({"status":"ok"})"; return response;
    case Route::kVersion: response.body = R"({"version":")" MILLRACE_VERSION R"("})"; return response;
    case Route::kTokenize: return handle_tokenize(request);
    case Route::kDetokenize: return handle_detokenize(request);
    case Route::kApplyTemplate: return handle_apply_template(request);
    case Route::kAbortRequest: return handle_abort(request);
    case Route::kPauseGeneration: return handle_pause(request);
    case Route::kContinueGeneration: return handle_continue();
    case Route::kServerInfo: return handle_server_info();
    case Route::kLoad: {
      const sched::EngineStatus status = service_.engine->status();
      JsonWriter(response.body)
          .begin_object()
          .member("server_load", in_flight())
          .member("running", status.running)
          .member("waiting", status.waiting)
          .end_object();
      return response;
    }
    case Route::kMetrics: return handle_metrics();
    case Route::kOpenapi:
      append_openapi(response.body, options_, input_processor_.limits(), service_.extra_routes);
      return response;
    case Route::kEmbeddings: return error_response({400, "embeddings are not supported by this server", ""});
    case Route::kExtra: return match.extra->handler(request);
    case Route::kPreflight: return preflight(match.allowed);
    case Route::kCompletions:
    case Route::kChatCompletions:
    case Route::kFlushCache:
    case Route::kNotFound:
    case Route::kMethodNotAllowed: break;
  }
  return error_response({500, fmt::format("{} has no answer", match.name), ""});
}

HttpResponse Api::reject_connection(size_t connection_count) {
  HttpResponse response =
      error_response({503, fmt::format("{} connections are open already (--max-connections)", connection_count), ""});
  add_common_headers(response, random_.hex_id());
  metrics_.count_http("refused", response.status);
  return response;
}

HttpResponse Api::handle_models(const RouteMatch& match) const {
  HttpResponse response;
  JsonWriter json(response.body);
  const sched::ModelInfo& info = service_.engine->model_info();
  const std::string& root = options_.served_model_name;
  if (match.route == Route::kModel) {
    if (auto unknown = input_processor_.check_model(std::string(match.argument))) return error_response(*unknown);
    write_model(json, match.argument, root, info, created_s_);
    return response;
  }
  json.begin_object().member("object", "list").key("data").begin_array();
  write_model(json, root, root, info, created_s_);
  for (const std::string& name : options_.other_model_names) write_model(json, name, root, info, created_s_);
  json.end_array().end_object();
  return response;
}

HttpResponse Api::handle_health() const {
  const sched::EngineStatus status = service_.engine->status();
  if (!status.ready) {
    return error_response({503, status.reason.empty() ? "the engine is not ready" : status.reason, ""});
  }
  HttpResponse response;
  response.body = R"({"status":"ok"})";
  return response;
}

HttpResponse Api::handle_tokenize(const HttpRequest& request) const {
  auto parsed = openai::parse_tokenize_request(request.body, input_processor_.limits());
  if (parsed.has_error()) return error_response(parsed.error());
  if (auto unknown = input_processor_.check_model(parsed->model)) return error_response(*unknown);
  bool add_special_tokens = parsed->add_special_tokens.value_or(true);
  std::string text;
  if (const auto* conversation = std::get_if<openai::Conversation>(&parsed->input)) {
    auto rendered = input_processor_.render(*conversation);
    if (rendered.has_error()) return error_response(rendered.error());
    text = std::move(*rendered);
    add_special_tokens = parsed->add_special_tokens.value_or(false);
  } else {
    text = std::move(std::get<std::string>(parsed->input));
  }
  const std::vector<TokenId> ids = service_.tokenizer->encode(text, add_special_tokens);
  HttpResponse response;
  JsonWriter json(response.body);
  json.begin_object().member("count", ids.size());
  json.member("max_model_len", service_.engine->model_info().context_length).key("tokens").begin_array();
  for (const TokenId id : ids) json.value(id);
  json.end_array();
  if (parsed->return_token_strings) {
    json.key("token_strs").begin_array();
    for (const TokenId id : ids) json.value(service_.tokenizer->id_to_token(id));
    json.end_array();
  }
  json.end_object();
  return response;
}

HttpResponse Api::handle_detokenize(const HttpRequest& request) const {
  auto parsed = openai::parse_detokenize_request(request.body, input_processor_.limits());
  if (parsed.has_error()) return error_response(parsed.error());
  if (auto unknown = input_processor_.check_model(parsed->model)) return error_response(*unknown);
  HttpResponse response;
  const size_t most = options_.max_body_bytes;
  const std::string text = service_.tokenizer->decode(parsed->tokens, parsed->skip_special_tokens, most);
  if (text.size() > most) {
    return error_response(
        {413, fmt::format("the text of the tokens is longer than {} bytes (--max-body-mib)", most), "tokens"});
  }
  JsonWriter(response.body).begin_object().member("prompt", text).end_object();
  return response;
}

HttpResponse Api::handle_apply_template(const HttpRequest& request) const {
  auto parsed = openai::parse_template_request(request.body, input_processor_.limits());
  if (parsed.has_error()) return error_response(parsed.error());
  auto rendered = input_processor_.render(*parsed);
  if (rendered.has_error()) return error_response(rendered.error());
  HttpResponse response;
  JsonWriter(response.body).begin_object().member("prompt", *rendered).end_object();
  return response;
}

HttpResponse Api::handle_abort(const HttpRequest& request) {
  auto parsed = openai::parse_abort_request(request.body);
  if (parsed.has_error()) return error_response(parsed.error());
  if (parsed->all && !is_authorised(request, true)) {
    return error_response({401, "abort_all: the admin's API key is missing", "abort_all"});
  }
  const size_t count = parsed->all ? request_manager_.abort_all() : request_manager_.abort(parsed->request_id);
  if (count == 0 && !parsed->all) {
    return error_response(
        {404, fmt::format("no request '{}' is in flight", parsed->request_id.substr(0, 256)), "request_id"});
  }
  HttpResponse response;
  JsonWriter(response.body).begin_object().member("aborted", count).end_object();
  return response;
}

asio::awaitable<void> Api::flush(async::Duration patience, std::optional<Result<void>>& outcome,
                                 async::WaitList& ended) {
  Result<void> result;
  try {
    result = co_await service_.engine->flush_cache(runtime_, patience);
  } catch (const boost::system::system_error& failure) {
    if (failure.code() == asio::error::operation_aborted) throw;
    result = make_error(ErrorCode::kInternal, "the engine failed: {}", failure.what());
  } catch (const std::exception& failure) {
    result = make_error(ErrorCode::kInternal, "the engine failed: {}", failure.what());
  }
  outcome = std::move(result);
  ended.notify_all();
}

asio::awaitable<std::optional<HttpResponse>> Api::handle_flush(HttpRequest& request, Connection& connection) {
  const auto parsed = openai::parse_flush_request(request.body);
  request.free_body();  // it may be long until the answer
  if (parsed.has_error()) co_return error_response(parsed.error());
  const auto patience = std::chrono::duration_cast<async::Duration>(std::chrono::duration<double>(parsed->timeout_s));
  std::optional<Result<void>> outcome;
  async::WaitList ended(runtime_);
  async::TaskGroup tasks(runtime_);
  tasks.spawn("flush the cache", flush(patience, outcome, ended));
  tasks.spawn("disconnect watcher", connection.watch([&ended] { ended.notify_all(); }));
  std::exception_ptr cancelled;
  try {
    while (!outcome && !connection.peer_gone()) co_await ended.wait();
  } catch (...) {
    cancelled = std::current_exception();
  }
  co_await asio::this_coro::reset_cancellation_state(asio::disable_cancellation());
  tasks.cancel();
  co_await tasks.join();
  co_await asio::this_coro::reset_cancellation_state(asio::enable_terminal_cancellation());
  if (cancelled) std::rethrow_exception(cancelled);
  if (!outcome) co_return std::nullopt;
  if (outcome->has_error()) co_return error_response(openai::to_api_error(outcome->error(), ""));
  HttpResponse response;
  JsonWriter(response.body).begin_object().member("flushed", true).end_object();
  co_return response;
}

HttpResponse Api::not_ready() const {
  return error_response({503, "not ready: " + service_.engine->status().reason, ""});
}

HttpResponse Api::handle_pause(const HttpRequest& request) {
  const auto parsed = openai::parse_pause_request(request.body);
  if (parsed.has_error()) return error_response(parsed.error());
  if (!service_.engine->pause(parsed->mode)) return not_ready();
  HttpResponse response;
  JsonWriter(response.body).begin_object().member("paused", true).end_object();
  return response;
}

HttpResponse Api::handle_continue() {
  if (!service_.engine->resume()) return not_ready();
  HttpResponse response;
  JsonWriter(response.body).begin_object().member("paused", false).end_object();
  return response;
}

HttpResponse Api::handle_server_info() const {
  const sched::ModelInfo& info = service_.engine->model_info();
  const sched::EngineStatus status = service_.engine->status();
  HttpResponse response;
  JsonWriter json(response.body);
  json.begin_object().member("version", MILLRACE_VERSION).member("served_model_name", options_.served_model_name);
  json.key("model").begin_object().member("architecture", info.architecture);
  json.member("context_length", info.context_length).member("vocab_size", info.vocab_size);
  json.member("parameter_count", info.parameter_count).member("stage_count", info.stage_count);
  json.member("kv_token_capacity", info.kv_token_capacity).end_object();
  json.key("engine").begin_object().member("ready", status.ready).member("reason", status.reason);
  json.member("running", status.running).member("waiting", status.waiting);
  json.member("paused", status.paused);
  json.member("free_pages", status.free_pages).member("total_pages", status.total_pages);
  json.member("cached_pages", status.cached_pages);
  json.member("cached_host_pages", status.cached_host_pages).member("host_pages", status.host_pages).end_object();
  json.key("limits").begin_object().member("max_connections", options_.max_connections);
  json.member("max_requests_in_flight", options_.max_requests_in_flight).member("max_choices", options_.max_choices);
  json.member("max_body_bytes", options_.max_body_bytes);
  json.member("max_bodies_bytes", options_.max_bodies_bytes).end_object();
  json.member("requests_in_flight", in_flight()).member("connections", connection_count_);
  if (service_.extra_info) service_.extra_info(json);
  json.end_object();
  return response;
}

HttpResponse Api::handle_metrics() const {
  HttpResponse response;
  response.content_type = "text/plain; version=0.0.4; charset=utf-8";
  response.body =
      metrics_.render(options_.served_model_name, service_.engine->status(),
                      {.in_flight = in_flight(), .connections = connection_count_, .body_bytes = bodies_.used_bytes()});
  append_process_metrics(response.body);
  if (service_.extra_metrics) service_.extra_metrics(response.body);
  return response;
}

}  // namespace millrace::server
