#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

/// Tool calls that are written parameter by parameter, strings without quotes:
///   <function=name>
///   <parameter=key>
///   value
///   </parameter>
///   </function>
namespace millrace::text {

/// The types of tool parameters, from their schemas. They tell a string from a number.
class ParameterTypes {
 public:
  enum class Type : uint8_t {
    kText,  ///< also parameters without a type
    kTextOrNull,
    kJson,
  };
  /// Adds a tool. `schema` is the JSON schema of its arguments.
  void add(const std::string& tool, std::string_view schema);
  [[nodiscard]] Type of(const std::string& tool, const std::string& parameter) const;

 private:
  std::map<std::pair<std::string, std::string>, Type> types_;  // those that are not kText
};

/// Parses one such call byte by byte into JSON arguments.
class XmlCallParser {
 public:
  enum class State : uint8_t { kOpen, kDone, kBad };

  explicit XmlCallParser(const ParameterTypes* types) : types_(types) {}

  /// Parses one byte. The first belongs to "<function=" or is white space.
  State feed(char c);
  [[nodiscard]] bool has_name() const { return !name_.empty(); }
  [[nodiscard]] const std::string& name() const { return name_; }
  /// Returns how many bytes of an unfinished tag before a bad byte have not been emitted.
  [[nodiscard]] const std::string& unconsumed_bytes() const { return pending_; }
  /// Returns the whole parameters since the last call of this function.
  [[nodiscard]] std::string take_arguments();

 private:
  enum class Phase : uint8_t { kStart, kName, kBetween, kKey, kValue, kEnd };

  State feed_word(char c);
  void end_value();
  State end(State state);

  const ParameterTypes* types_;
  Phase phase_ = Phase::kStart;
  std::string pending_;
  std::string name_;
  std::string key_;
  std::string arguments_;  // not taken yet
  bool has_arguments_ = false;
};

}  // namespace millrace::text
