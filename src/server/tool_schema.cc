#include "server/tool_schema.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/json.h"

namespace millrace::server {

bool is_required(JsonValue schema, std::string_view key) {
  JsonArray required;
  if (!schema["required"].get(required)) return false;
  return std::ranges::any_of(required, [key](JsonValue name) {
    std::string_view word;
    return name.get(word) && word == key;
  });
}

std::string with_definitions(JsonValue property, JsonValue root) {
  std::string own = to_json(property);
  for (const char* name : {"$defs", "definitions"}) {
    JsonValue shared = root[name];
    if (!own.starts_with("{") || shared.is_missing()) continue;
    own.insert(1, fmt::format("\"{}\":{}{}", name, to_json(shared), own == "{}" ? "" : ","));
  }
  return own;
}

}  // namespace millrace::server
