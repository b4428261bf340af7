#include "server/generation_routes.h"

#include <boost/asio/cancellation_state.hpp>
#include <boost/asio/this_coro.hpp>

#include "server/exchange.h"
#include "server/generation_spec.h"
#include "server/openai/response_format.h"
#include "server/response_task.h"
#include "server/responses/request.h"
#include "server/worker.h"

namespace millrace::server {

using openai::ApiError;

namespace {

/// Calls `prepare`; what it throws is a 500.
GenerationRoutes::Spec prepare_safely(const HttpRequest& request, const GenerationRoutes::Prepare& prepare) {
  try {
    return prepare(request);
  } catch (const std::exception& failure) {
    return openai::internal_error(failure);
  }
}

}  // namespace

GenerationRoutes::GenerationRoutes(const ServerOptions& options, const InputProcessor& input_processor,
                                   RandomSource& request_ids, ResponseContext context)
    : input_processor_(input_processor), context_(context), active_(options, request_ids) {}

void GenerationRoutes::add_to(Router& router) {
  const auto through = [this](Spec (GenerationRoutes::*prepare)(const HttpRequest&) const) {
    return [this, prepare](Exchange& exchange) {
      return generate(exchange, [this, prepare](const HttpRequest& request) { return (this->*prepare)(request); });
    };
  };
  router.add({.method = Method::kPost,
              .path = "/v1/completions",
              .handler = through(&GenerationRoutes::prepare_completion),
              .takes_json = true,
              .doc = {.summary = "Continue prompts",
                      .request = "CompletionRequest",
                      .response = "CompletionResponse",
                      .event = "CompletionEvent"}});
  router.add({.method = Method::kPost,
              .path = "/v1/chat/completions",
              .handler = through(&GenerationRoutes::prepare_chat),
              .takes_json = true,
              .doc = {.summary = "Answer a conversation",
                      .request = "ChatCompletionRequest",
                      .response = "ChatCompletionResponse",
                      .event = "ChatCompletionEvent"}});
}

GenerationRoutes::Spec GenerationRoutes::prepare_completion(const HttpRequest& request) const {
  auto parsed = openai::parse_completion_request(request.body, input_processor_.limits());
  if (parsed.has_error()) return parsed.error();
  return input_processor_.prepare(std::move(*parsed), request.request_id);
}

GenerationRoutes::Spec GenerationRoutes::prepare_chat(const HttpRequest& request) const {
  auto parsed = openai::parse_chat_request(request.body, input_processor_.limits());
  // Cursor's agent sends items here, and reads a chat completion.
  if (parsed.has_error()) {
    if (auto items = responses::parse_chat_of_items(request.body, input_processor_.limits()))
      parsed = *std::move(items);
  }
  if (parsed.has_error()) return parsed.error();
  return input_processor_.prepare(std::move(*parsed), request.request_id);
}

asio::awaitable<GenerationRoutes::Spec> GenerationRoutes::prepare(Exchange& exchange, Prepare prepare) {
  HttpRequest& request = exchange.request;
  std::optional<ApiError> refusal = active_.check_room();
  std::optional<Spec> spec;
  if (!refusal) {
    if (request.body.size() > Worker::kLargeBodyBytes || openai::may_constrain_output(request.body)) {
      co_await context_.worker.run([&] { spec = prepare_safely(request, prepare); });
      refusal = active_.check_room();  // others may have begun meanwhile
    } else {
      spec = prepare_safely(request, prepare);
    }
  }
  request.free_body();
  if (!refusal && spec->has_error()) refusal = spec->error();
  if (!refusal) refusal = active_.make_id_unique(**spec);
  if (refusal) co_return *refusal;
  co_return std::move(*spec);
}

asio::awaitable<std::optional<HttpResponse>> GenerationRoutes::generate(Exchange& exchange, Prepare prepare) {
  Spec spec = co_await this->prepare(exchange, std::move(prepare));
  if (spec.has_error()) co_return exchange.make_error(spec.error());
  ExchangeSink sink(exchange);
  co_await serve(std::move(*spec), sink);
  co_return std::nullopt;
}

asio::awaitable<void> GenerationRoutes::serve(GenerationSpec spec, ResponseSink& sink) {
  ResponseTask task(context_, std::move(spec), sink);
  active_.add(task.id(), task);
  std::exception_ptr failure;
  try {
    co_await task.run();
  } catch (...) {
    failure = std::current_exception();
  }
  co_await asio::this_coro::reset_cancellation_state(asio::disable_cancellation());
  co_await task.finish();
  co_await asio::this_coro::reset_cancellation_state(asio::enable_terminal_cancellation());
  active_.remove(task.id());
  if (failure) std::rethrow_exception(failure);
}

size_t GenerationRoutes::abort(const std::string& id) {
  return active_.abort({"", "cmpl-", "chatcmpl-", "msg_", "resp_"}, id);
}

size_t GenerationRoutes::abort_all() {
  return active_.abort_all();
}

void GenerationRoutes::reject_all() {
  context_.is_stopping = true;
  active_.wake_all();
}

}  // namespace millrace::server
