#pragma once

#include <simdjson.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace millrace::test {

inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream content;
  content << file.rdbuf();
  return std::move(content).str();
}

/// The JSON text of a member, or "" if it is absent.
inline std::string member_json(simdjson::dom::element object, std::string_view name) {
  simdjson::dom::element value;
  if (object.at_key(name).get(value) != simdjson::SUCCESS) return {};
  return simdjson::to_string(value);
}

inline std::string member_text(simdjson::dom::element object, std::string_view name) {
  std::string_view text;
  if (object.at_key(name).get_string().get(text) != simdjson::SUCCESS) return {};
  return std::string(text);
}

}  // namespace millrace::test
