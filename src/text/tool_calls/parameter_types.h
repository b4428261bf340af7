#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

/// Types of tool parameters. They tell a string from a number where a format writes values without quotes.
namespace millrace::text {

/// The types that a value may have, from its schema.
struct ValueTypes {
  bool text = false;
  bool null = false;
  bool boolean = false;
  bool integer = false;
  bool number = false;
  bool array = false;
  bool object = false;

  [[nodiscard]] bool has_others_than_text() const { return null || boolean || integer || number || array || object; }
  [[nodiscard]] bool is_any() const { return !text && !has_others_than_text(); }
  friend bool operator==(const ValueTypes&, const ValueTypes&) = default;
};
inline constexpr ValueTypes kTextOnly{.text = true};

/// Returns the JSON of a value that is written without quotes: the first of the types that it can have, else a string.
[[nodiscard]] std::string value_to_json(std::string_view value, const ValueTypes& types);

/// The types of the parameters of a request's tools.
class ParameterTypes {
 public:
  /// Adds a tool. `schema` is the JSON schema of its arguments.
  void add(const std::string& tool, std::string_view schema);
  /// Returns kTextOnly for a parameter that the schema does not describe.
  [[nodiscard]] ValueTypes of(const std::string& tool, const std::string& parameter) const;
  /// Returns the types of parameters that the tool's schema does not name.
  [[nodiscard]] ValueTypes of_others(const std::string& tool) const;

 private:
  void add_others(const std::string& tool, const ValueTypes& types);

  std::map<std::pair<std::string, std::string>, ValueTypes> types_;
  std::map<std::string, ValueTypes> additional_;  // of the parameters that a tool's properties do not name
};

}  // namespace millrace::text
