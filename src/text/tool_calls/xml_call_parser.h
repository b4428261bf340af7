#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

/// Calls of tools that are written parameter by parameter, each value as it is and without quotes where it is a text:
///   <function=name>
///   <parameter=key>
///   value
///   </parameter>
///   </function>
namespace millrace::text {

/// What the values of tools' parameters are, as their schemas say: without that nobody could tell a text from a number.
class ParameterTypes {
 public:
  enum class Type : uint8_t {
    kText,  ///< also what no schema tells of
    kTextOrNull,
    kJson,
  };
  /// `schema`: the JSON schema of the tool's arguments.
  void add(const std::string& tool, std::string_view schema);
  [[nodiscard]] Type of(const std::string& tool, const std::string& parameter) const;

 private:
  std::map<std::pair<std::string, std::string>, Type> types_;  // those that are not kText
};

/// Such a call, byte by byte, made into JSON arguments.
class XmlCallParser {
 public:
  enum class State : uint8_t { kOpen, kDone, kBad };

  explicit XmlCallParser(const ParameterTypes* types) : types_(types) {}

  /// Takes one byte; the first is that of "<function=", or space.
  State feed(char c);
  [[nodiscard]] bool has_name() const { return !name_.empty(); }
  [[nodiscard]] const std::string& name() const { return name_; }
  /// Bytes before a bad one that are no part of what has been told: a tag that was begun.
  [[nodiscard]] const std::string& unconsumed_bytes() const { return pending_; }
  /// What has come since the last call of this: whole parameters.
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
