#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "gguf/value.h"

namespace millrace::gguf {

/// The metadata of a file: values by key, which borrow the file's bytes. The functions that take a key throw
/// ErrorException (kData) for a value of another type or out of range. The message names the file, the key, what was
/// found and what was wanted.
class Metadata {
 public:
  Metadata() = default;
  explicit Metadata(std::string source) : source_(std::move(source)) {}
  /// Returns the file's path, with which every message begins.
  [[nodiscard]] const std::string& source() const { return source_; }
  /// Adds a value. Returns whether the key is new.
  [[nodiscard]] bool add(std::string_view key, const Value& value) { return values_.emplace(key, value).second; }
  [[nodiscard]] const Value* find(std::string_view key) const;
  [[nodiscard]] bool has(std::string_view key) const { return find(key) != nullptr; }
  [[nodiscard]] size_t size() const { return values_.size(); }
  /// Returns all keys, in any order.
  [[nodiscard]] std::vector<std::string_view> keys() const;

  [[nodiscard]] std::optional<bool> flag(std::string_view key) const;
  [[nodiscard]] std::optional<int64_t> integer(std::string_view key, int64_t min, int64_t max) const;
  [[nodiscard]] std::optional<double> number(std::string_view key) const;
  [[nodiscard]] std::optional<std::string_view> text(std::string_view key) const;
  [[nodiscard]] std::optional<std::vector<std::string_view>> texts(std::string_view key) const;
  [[nodiscard]] std::optional<std::vector<int64_t>> integers(std::string_view key) const;
  [[nodiscard]] std::optional<std::vector<double>> numbers(std::string_view key) const;
  /// Throws when the key is absent, too.
  [[nodiscard]] int64_t required_integer(std::string_view key, int64_t min, int64_t max) const;

  /// Throws an error of this file.
  template <class... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    throw_error(ErrorCode::kData, source_ + ": " + fmt::format(format, std::forward<Args>(args)...));
  }

 private:
  std::string source_;
  std::unordered_map<std::string_view, Value> values_;
};

}  // namespace millrace::gguf
