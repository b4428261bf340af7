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
#include "sched/head/ring_set.h"
#include "server/openai/request.h"
#include "server/ring_address.h"

namespace millrace::server {

using openai::error_response;

namespace {

HttpResponse aborted_response(size_t count) {
  HttpResponse response;
  JsonWriter(response.body).begin_object().member("aborted", count).end_object();
  return response;
}

HttpResponse drain_response(const sched::RingSet& rings, size_t ring) {
  const sched::RingReport report = rings.report(ring);
  HttpResponse response;
  JsonWriter json(response.body);
  json.begin_object().member("ring", ring).member("draining", report.is_draining);
  json.member("running", report.status.running).member("waiting", report.status.waiting).end_object();
  return response;
}

}  // namespace

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
  router.add(
      {.method = Method::kPost,
       .path = "/continue_generation",
       .access = Access::kAdmin,
       .handler = [this](const HttpRequest& request) { return resume(request); },
       .takes_json = true,
       .doc = {
           .summary = "End a pause", .request = "RingRequest", .response = "PauseResponse", .body_optional = true}});
  router.add({.method = Method::kPost,
              .path = "/drain_ring",
              .access = Access::kAdmin,
              .handler = [this](const HttpRequest& request) { return drain(request); },
              .takes_json = true,
              .doc = {.summary = "Route no more requests to one ring of several",
                      .request = "RingRequest",
                      .response = "RingDrain"}});
  router.add({.method = Method::kPost,
              .path = "/undrain_ring",
              .access = Access::kAdmin,
              .handler = [this](const HttpRequest& request) { return undrain(request); },
              .takes_json = true,
              .doc = {.summary = "End the drain of a ring", .request = "RingRequest", .response = "RingDrain"}});
  router.add({.method = Method::kPost,
              .path = "/restart_ring",
              .access = Access::kAdmin,
              .handler = [this](const HttpRequest& request) { return restart(request); },
              .takes_json = true,
              .doc = {.summary = "Build a drained ring again, and route requests to it",
                      .request = "RingRequest",
                      .response = "RingDrain"}});
}

HttpResponse AdminRoutes::abort(const HttpRequest& request) {
  auto parsed = openai::parse_abort_request(request.body);
  if (parsed.has_error()) return error_response(parsed.error());
  if (parsed->all && !access_.is_admin(request)) {
    return error_response({401, "abort_all: the admin's API key is missing", "abort_all"});
  }
  if (const auto unknown = check_ring(engine_, parsed->ring, "ring")) return error_response(*unknown);
  if (parsed->all && parsed->ring && engine_.rings() != nullptr) {
    return aborted_response(engine_.rings()->abort_all(*parsed->ring));
  }
  const size_t count = parsed->all ? generation_.abort_all() + pooling_.abort_all()
                                   : generation_.abort(parsed->request_id) + pooling_.abort(parsed->request_id);
  if (count == 0 && !parsed->all) {
    return error_response(
        {404, fmt::format("no request '{}' is in flight", parsed->request_id.substr(0, 256)), "request_id"});
  }
  return aborted_response(count);
}

asio::awaitable<void> AdminRoutes::run_flush(const openai::FlushRequest& wanted, std::optional<Result<void>>& outcome,
                                             async::WaitList& ended) {
  const auto patience = std::chrono::duration_cast<async::Duration>(std::chrono::duration<double>(wanted.timeout_s));
  sched::RingSet* rings = wanted.ring ? engine_.rings() : nullptr;
  Result<void> result;
  try {
    if (rings == nullptr) {
      result = co_await engine_.flush_cache(runtime_, patience);
    } else {
      result = co_await rings->flush(*wanted.ring, runtime_, patience);
    }
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
  exchange.request.free_body();  // the response may come much later
  if (parsed.has_error()) co_return error_response(parsed.error());
  if (const auto unknown = check_ring(engine_, parsed->ring, "ring")) co_return error_response(*unknown);
  std::optional<Result<void>> outcome;
  async::WaitList ended(runtime_);
  async::TaskGroup tasks(runtime_);
  tasks.spawn("flush the cache", run_flush(*parsed, outcome, ended));
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
  if (const auto unknown = check_ring(engine_, parsed->ring, "ring")) return error_response(*unknown);
  if (!engine_of(engine_, parsed->ring).pause(parsed->mode)) return not_ready();
  HttpResponse response;
  JsonWriter(response.body).begin_object().member("paused", true).end_object();
  return response;
}

HttpResponse AdminRoutes::resume(const HttpRequest& request) {
  const auto parsed = openai::parse_ring_request(request.body);
  if (parsed.has_error()) return error_response(parsed.error());
  if (const auto unknown = check_ring(engine_, parsed->ring, "ring")) return error_response(*unknown);
  if (!engine_of(engine_, parsed->ring).resume()) return not_ready();
  HttpResponse response;
  JsonWriter(response.body).begin_object().member("paused", false).end_object();
  return response;
}

openai::ApiResult<size_t> AdminRoutes::named_ring(const openai::ApiResult<openai::RingRequest>& parsed) {
  if (parsed.has_error()) return parsed.error();
  if (engine_.rings() == nullptr) return openai::ApiError{409, "this server has one ring (--dp-size 1)", "ring"};
  if (!parsed->ring) return openai::ApiError{400, "ring: missing", "ring"};
  if (auto unknown = check_ring(engine_, parsed->ring, "ring")) return *std::move(unknown);
  return size_t{*parsed->ring};
}

HttpResponse AdminRoutes::drain(const HttpRequest& request) {
  const auto ring = named_ring(openai::parse_ring_request(request.body));
  if (ring.has_error()) return error_response(ring.error());
  sched::RingSet& rings = *engine_.rings();
  if (const auto drained = rings.drain(*ring); drained.has_error()) {
    return error_response(openai::to_api_error(drained.error(), "ring"));
  }
  return drain_response(rings, *ring);
}

HttpResponse AdminRoutes::undrain(const HttpRequest& request) {
  const auto ring = named_ring(openai::parse_ring_request(request.body));
  if (ring.has_error()) return error_response(ring.error());
  engine_.rings()->undrain(*ring);
  return drain_response(*engine_.rings(), *ring);
}

HttpResponse AdminRoutes::restart(const HttpRequest& request) {
  const auto parsed = openai::parse_ring_request(request.body);
  const auto ring = named_ring(parsed);
  if (ring.has_error()) return error_response(ring.error());
  sched::RingSet& rings = *engine_.rings();
  const sched::RingReport report = rings.report(*ring);
  const uint32_t left = report.status.running + report.status.waiting;
  if (!parsed->force && (!report.is_draining || left > 0)) {
    return error_response({409,
                           fmt::format("ring {} {}: drain it first, or restart it with force", *ring,
                                       report.is_draining ? fmt::format("has {} requests", left) : "takes requests"),
                           "ring"});
  }
  if (!rings.restart(*ring)) return not_ready();
  return drain_response(rings, *ring);
}

}  // namespace millrace::server
