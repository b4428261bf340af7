#include "server/openapi.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/json.h"
#include "server/messages/error.h"
#include "server/messages/request.h"
#include "server/openai/schema.h"
#include "server/responses/request.h"

namespace millrace::server {
namespace {

constexpr std::string_view kResponses =
#include <openapi_responses.inc>
    ;

/// Returns the documented routes; the methods of one path are neighbours.
std::vector<const Route*> documented(std::span<const Route> routes) {
  std::vector<const Route*> operations;
  for (const Route& route : routes) {
    if (!route.doc.summary.empty()) operations.push_back(&route);
  }
  std::ranges::sort(operations, {},
                    [](const Route* each) { return std::pair(std::string_view(each->path), each->method); });
  return operations;
}

void write_reference(JsonWriter& json, std::string_view kind, std::string_view name) {
  json.begin_object().member("$ref", fmt::format("#/components/{}/{}", kind, name)).end_object();
}

void write_content(JsonWriter& json, const RouteDoc& doc) {
  json.key("content").begin_object();
  if (doc.response.find('/') != std::string_view::npos) {
    json.key(doc.response).raw(R"({"schema":{"type":"string"}})");
  } else {
    json.key("application/json").begin_object().key("schema");
    write_reference(json, "schemas", doc.response);
    json.end_object();
  }
  if (!doc.event.empty()) {
    json.key("text/event-stream").begin_object().key("schema");
    write_reference(json, "schemas", doc.event);
    json.end_object();
  }
  json.end_object();
}

/// Returns the name of an error's response, which differs by the route's dialect.
std::string error_name(openai::ErrorDialect dialect, unsigned status) {
  return fmt::format("{}{}", dialect == &messages::error_response ? "Message" : "", status);
}

void write_responses(JsonWriter& json, const Route& operation, bool has_key) {
  json.key("responses").begin_object().key("200").begin_object().member("description", operation.doc.summary);
  write_content(json, operation.doc);
  json.end_object();
  const bool is_same_site_only = operation.access == Access::kAdmin || operation.access == Access::kClientSameSite;
  std::vector<unsigned> statuses = {400, 408, 413, 431, 500, 503};
  if (!operation.doc.request.empty()) statuses.insert(statuses.end(), {404, 409, 415, 429, 504});
  const bool has_id = operation.path.find("{id}") != std::string::npos;
  if (has_id) statuses.push_back(404);
  if (operation.method == Method::kDelete) statuses.push_back(409);
  if (operation.path == "/stop_profile") statuses.push_back(409);
  if (operation.path == "/continue_generation") statuses.push_back(415);
  if (has_key && operation.access != Access::kPublic) statuses.push_back(401);
  if (!has_key && is_same_site_only) statuses.push_back(403);
  std::ranges::sort(statuses);
  for (const unsigned status : statuses) {
    json.key(fmt::to_string(status));
    write_reference(json, "responses", error_name(operation.make_error, status));
  }
  json.end_object();
}

void write_parameters(JsonWriter& json, const Route& operation) {
  const bool has_id = operation.path.find("{id}") != std::string::npos;
  if (!has_id && operation.doc.query.empty()) return;
  json.key("parameters").begin_array();
  if (has_id) json.raw(R"({"name":"id","in":"path","required":true,"schema":{"type":"string"}})");
  if (!operation.doc.query.empty()) json.raw(operation.doc.query);
  json.end_array();
}

void write_operation(JsonWriter& json, const Route& operation, bool has_key) {
  std::string method(to_string(operation.method));
  std::ranges::transform(method, method.begin(), [](char c) { return static_cast<char>(c - 'A' + 'a'); });
  json.key(method).begin_object().member("summary", operation.doc.summary);
  write_parameters(json, operation);
  if (!operation.doc.request.empty()) {
    json.key("requestBody").begin_object().member("required", !operation.doc.body_optional).key("content");
    json.begin_object().key("application/json").begin_object().key("schema");
    write_reference(json, "schemas", operation.doc.request);
    json.end_object().end_object().end_object();
  }
  if (has_key && operation.access == Access::kPublic) json.key("security").begin_array().end_array();
  write_responses(json, operation, has_key);
  json.end_object();
}

void write_error_responses(JsonWriter& json) {
  json.key("responses").begin_object();
  for (const openai::ErrorDialect dialect : {&openai::error_response, &messages::error_response}) {
    const std::string schema = dialect == &messages::error_response ? "MessageError" : "Error";
    for (const unsigned status : {400u, 401u, 403u, 404u, 408u, 409u, 413u, 415u, 429u, 431u, 500u, 503u, 504u}) {
      json.key(error_name(dialect, status)).begin_object().member("description", status_text(status)).key("content");
      json.begin_object().key("application/json").begin_object().key("schema");
      write_reference(json, "schemas", schema);
      json.end_object().end_object().end_object();
    }
  }
  json.end_object();
}

}  // namespace

void append_openapi(std::string& out, const ServerOptions& options, const openai::RequestLimits& limits,
                    std::span<const Route> routes) {
  const bool has_key = !options.api_keys.empty() || !options.admin_api_key.empty();
  JsonWriter json(out);
  json.begin_object().member("openapi", "3.1.0").key("info").begin_object();
  json.member("title", "millrace").member("version", MILLRACE_VERSION).end_object().key("paths").begin_object();
  std::string_view path;
  for (const Route* operation : documented(routes)) {
    if (operation->path != path) {
      if (!path.empty()) json.end_object();
      path = operation->path;
      json.key(path).begin_object();
    }
    write_operation(json, *operation, has_key);
  }
  if (!path.empty()) json.end_object();
  json.end_object();
  if (has_key) json.key("security").raw(R"([{"key":[]}])");
  json.key("components").begin_object();
  if (has_key) json.key("securitySchemes").raw(R"({"key":{"type":"http","scheme":"bearer"}})");
  write_error_responses(json);
  json.key("schemas");
  std::string schemas = "{";
  openai::append_request_schemas(schemas, limits);
  schemas += ',';
  responses::append_request_schema(schemas, limits);
  schemas += ',';
  messages::append_request_schemas(schemas, limits);
  schemas += ',';
  schemas += kResponses.substr(kResponses.find('{') + 1);
  json.raw(schemas).end_object().end_object();
}

}  // namespace millrace::server
