#include "server/message_routes.h"

#include <memory>
#include <utility>

#include "base/json.h"
#include "server/exchange.h"
#include "server/generation_spec.h"
#include "server/messages/error.h"
#include "server/messages/message_writer.h"
#include "server/messages/request.h"

namespace millrace::server {

void MessageRoutes::add_to(Router& router) {
  router.add({.method = Method::kPost,
              .path = "/v1/messages",
              .handler =
                  [this](Exchange& exchange) {
                    return generation_.generate(exchange,
                                                [this](const HttpRequest& request) { return prepare(request); });
                  },
              .takes_json = true,
              .make_error = &messages::error_response,
              .doc = {.summary = "Answer a conversation, as Anthropic's API",
                      .request = "MessageRequest",
                      .response = "Message",
                      .event = "MessageEvent"}});
  router.add({.method = Method::kPost,
              .path = "/v1/messages/count_tokens",
              .handler = [this](const HttpRequest& request) { return count_tokens(request); },
              .takes_json = true,
              .uses_worker = true,
              .make_error = &messages::error_response,
              .doc = {.summary = "How many tokens a message's prompt has",
                      .request = "CountTokensRequest",
                      .response = "TokenCount"}});
}

GenerationRoutes::Spec MessageRoutes::prepare(const HttpRequest& request) const {
  auto parsed = messages::parse_message_request(request.body, input_processor_.limits());
  if (parsed.has_error()) return parsed.error();
  const uint32_t max_tokens = *parsed->max_tokens;
  auto spec = input_processor_.prepare(std::move(*parsed), request.request_id);
  if (spec.has_error()) return spec;
  spec->set_id("msg_" + request.request_id);
  spec->make_writer = [max_tokens](const openai::ResponseInfo& info, const ChoiceOptions&) {
    return std::make_unique<messages::MessageWriter>(info, max_tokens);
  };
  return spec;
}

HttpResponse MessageRoutes::count_tokens(const HttpRequest& request) const {
  const auto parsed = messages::parse_count_request(request.body, input_processor_.limits());
  if (parsed.has_error()) return messages::error_response(parsed.error());
  const auto count = input_processor_.count_prompt_tokens(*parsed);
  if (count.has_error()) return messages::error_response(count.error());
  HttpResponse response;
  JsonWriter(response.body).begin_object().member("input_tokens", *count).end_object();
  return response;
}

}  // namespace millrace::server
