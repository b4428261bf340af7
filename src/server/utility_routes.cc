#include "server/utility_routes.h"

#include <fmt/format.h>

#include "base/json.h"
#include "sched/head/engine.h"
#include "sched/head/model_info.h"

namespace millrace::server {

using openai::error_response;

void UtilityRoutes::add_to(Router& router) {
  router.add({.method = Method::kPost,
              .path = "/tokenize",
              .handler = [this](const HttpRequest& request) { return tokenize(request); },
              .takes_json = true,
              .uses_worker = true,
              .doc = {.summary = "Tokenize a text or a conversation",
                      .request = "TokenizeRequest",
                      .response = "TokenizeResponse"}});
  router.add({.method = Method::kPost,
              .path = "/detokenize",
              .handler = [this](const HttpRequest& request) { return detokenize(request); },
              .takes_json = true,
              .uses_worker = true,
              .doc = {.summary = "Detokenize", .request = "DetokenizeRequest", .response = "PromptResponse"}});
  router.add(
      {.method = Method::kPost,
       .path = "/apply-template",
       .handler = [this](const HttpRequest& request) { return apply_template(request); },
       .takes_json = true,
       .uses_worker = true,
       .doc = {.summary = "Render the chat template", .request = "TemplateRequest", .response = "PromptResponse"}});
}

HttpResponse UtilityRoutes::tokenize(const HttpRequest& request) const {
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

HttpResponse UtilityRoutes::detokenize(const HttpRequest& request) const {
  auto parsed = openai::parse_detokenize_request(request.body, input_processor_.limits());
  if (parsed.has_error()) return error_response(parsed.error());
  if (auto unknown = input_processor_.check_model(parsed->model)) return error_response(*unknown);
  HttpResponse response;
  const size_t max_bytes = options_.http.max_body_bytes;
  const std::string text = service_.tokenizer->decode(parsed->tokens, parsed->skip_special_tokens, max_bytes);
  if (text.size() > max_bytes) {
    return error_response(
        {413, fmt::format("the text of the tokens is longer than {} bytes (--max-body-mib)", max_bytes), "tokens"});
  }
  JsonWriter(response.body).begin_object().member("prompt", text).end_object();
  return response;
}

HttpResponse UtilityRoutes::apply_template(const HttpRequest& request) const {
  auto parsed = openai::parse_template_request(request.body, input_processor_.limits());
  if (parsed.has_error()) return error_response(parsed.error());
  auto rendered = input_processor_.render(*parsed);
  if (rendered.has_error()) return error_response(rendered.error());
  HttpResponse response;
  JsonWriter(response.body).begin_object().member("prompt", *rendered).end_object();
  return response;
}

}  // namespace millrace::server
