#include "server/admin_routes.h"

#include <fmt/format.h>

#include <boost/asio/cancellation_state.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/system/system_error.hpp>
#include <exception>

#include "async/task_group.h"
#include "base/json.h"
#include "sched/head/engine.h"
#include "sched/head/engine_status.h"
#include "server/openai/request.h"

namespace millrace::server {

using openai::error_response;

void AdminRoutes::add_to(Router& router) {
  router.add({.method = Method::kPost,
              .path = "/abort_request",
              .access = Access::kClientSameSite,
              .handler = [this](const HttpRequest& request) { return abort(request); },
              .takes_json = true,
              .doc = {.summary = "End a request, or all", .request = "AbortRequest", .response = "AbortResponse"}});
  router.add({.method = Method::kPost,
              .path = "/flush_cache",
              .access = Access::kAdmin,
              .handler = [this](Exchange& exchange) { return flush(exchange); },
              .takes_json = true,
              .doc = {.summary = "Forget all cached prefixes",
                      .request = "FlushRequest",
                      .response = "FlushResponse",
                      .body_optional = true}});
  router.add({.method = Method::kPost,
              .path = "/reset_prefix_cache",
              .access = Access::kAdmin,
              .handler = [this](Exchange& exchange) { return flush(exchange); },
              .takes_json = true,
              .doc = {.summary = "The same as /flush_cache",
                      .request = "FlushRequest",
                      .response = "FlushResponse",
                      .body_optional = true}});
  router.add({.method = Method::kPost,
              .path = "/pause_generation",
              .access = Access::kAdmin,
              .handler = [this](const HttpRequest& request) { return pause(request); },
              .takes_json = true,
              .doc = {.summary = "Compute nothing until /continue_generation",
                      .request = "PauseRequest",
                      .response = "PauseResponse",
                      .body_optional = true}});
  router.add({.method = Method::kPost,
              .path = "/continue_generation",
              .access = Access::kAdmin,
              .handler = [this](const HttpRequest&) { return resume(); },
              .takes_json = true,
              .doc = {.summary = "End a pause", .response = "PauseResponse"}});
}

HttpResponse AdminRoutes::abort(const HttpRequest& request) {
  auto parsed = openai::parse_abort_request(request.body);
  if (parsed.has_error()) return error_response(parsed.error());
  if (parsed->all && !access_.is_admin(request)) {
    return error_response({401, "abort_all: the admin's API key is missing", "abort_all"});
  }
  const size_t count = parsed->all ? generation_.abort_all() + pooling_.abort_all()
                                   : generation_.abort(parsed->request_id) + pooling_.abort(parsed->request_id);
  if (count == 0 && !parsed->all) {
    return error_response(
        {404, fmt::format("no request '{}' is in flight", parsed->request_id.substr(0, 256)), "request_id"});
  }
  HttpResponse response;
  JsonWriter(response.body).begin_object().member("aborted", count).end_object();
  return response;
}

asio::awaitable<void> AdminRoutes::run_flush(async::Duration patience, std::optional<Result<void>>& outcome,
                                             async::WaitList& ended) {
  Result<void> result;
  try {
    result = co_await engine_.flush_cache(runtime_, patience);
  } catch (const boost::system::system_error& failure) {
    if (failure.code() == asio::error::operation_aborted) throw;
    result = make_error(ErrorCode::kInternal, "the engine failed: {}", failure.what());
  } catch (const std::exception& failure) {
    result = make_error(ErrorCode::kInternal, "the engine failed: {}", failure.what());
  }
  outcome = std::move(result);
  ended.notify_all();
}

asio::awaitable<std::optional<HttpResponse>> AdminRoutes::flush(Exchange& exchange) {
  const auto parsed = openai::parse_flush_request(exchange.request.body);
  exchange.request.free_body();  // the answer may come much later
  if (parsed.has_error()) co_return error_response(parsed.error());
  const auto patience = std::chrono::duration_cast<async::Duration>(std::chrono::duration<double>(parsed->timeout_s));
  std::optional<Result<void>> outcome;
  async::WaitList ended(runtime_);
  async::TaskGroup tasks(runtime_);
  tasks.spawn("flush the cache", run_flush(patience, outcome, ended));
  tasks.spawn("disconnect watcher", exchange.connection.watch([&ended] { ended.notify_all(); }));
  std::exception_ptr cancelled;
  try {
    while (!outcome && !exchange.connection.peer_gone()) co_await ended.wait();
  } catch (...) {
    cancelled = std::current_exception();
  }
  co_await asio::this_coro::reset_cancellation_state(asio::disable_cancellation());
  tasks.cancel();
  co_await tasks.join();
  co_await asio::this_coro::reset_cancellation_state(asio::enable_terminal_cancellation());
  if (cancelled) std::rethrow_exception(cancelled);
  if (!outcome) {
    exchange.record.status = 499;
    co_return std::nullopt;
  }
  if (outcome->has_error()) co_return error_response(openai::to_api_error(outcome->error(), ""));
  HttpResponse response;
  JsonWriter(response.body).begin_object().member("flushed", true).end_object();
  co_return response;
}

HttpResponse AdminRoutes::not_ready() const {
  return error_response({503, "not ready: " + engine_.status().reason, ""});
}

HttpResponse AdminRoutes::pause(const HttpRequest& request) {
  const auto parsed = openai::parse_pause_request(request.body);
  if (parsed.has_error()) return error_response(parsed.error());
  if (!engine_.pause(parsed->mode)) return not_ready();
  HttpResponse response;
  JsonWriter(response.body).begin_object().member("paused", true).end_object();
  return response;
}

HttpResponse AdminRoutes::resume() {
  if (!engine_.resume()) return not_ready();
  HttpResponse response;
  JsonWriter(response.body).begin_object().member("paused", false).end_object();
  return response;
}

}  // namespace millrace::server
