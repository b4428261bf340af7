#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace millrace::gguf {

/// The types of metadata, by their numbers in files.
enum class ValueType : uint32_t {
  kU8 = 0,
  kI8 = 1,
  kU16 = 2,
  kI16 = 3,
  kU32 = 4,
  kI32 = 5,
  kF32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kU64 = 10,
  kI64 = 11,
  kF64 = 12,
};
inline constexpr uint32_t kValueTypeCount = 13;

/// Returns the bytes of a number or bool; nothing for strings and arrays, whose length varies.
[[nodiscard]] std::optional<size_t> fixed_bytes(ValueType type);

/// A value of a file's metadata: a view of bytes that have been checked to hold it, and that outlive it. An accessor
/// gives nothing for a value of another type.
class Value {
 public:
  Value() = default;
  /// Takes the bytes after the type: of a string its length and text, of an array its items.
  Value(ValueType type, std::span<const std::byte> bytes) : type_(type), bytes_(bytes) {}
  Value(ValueType element, uint64_t count, std::span<const std::byte> items)
      : type_(ValueType::kArray), element_(element), count_(count), bytes_(items) {}

  /// Returns the type in words, for errors: "u32", "array of string".
  [[nodiscard]] std::string type_name() const;
  [[nodiscard]] bool is_array() const { return type_ == ValueType::kArray; }
  /// Returns the items of an array.
  [[nodiscard]] uint64_t size() const { return count_; }

  [[nodiscard]] std::optional<bool> flag() const;
  /// Returns an integer of any width; nothing beyond int64.
  [[nodiscard]] std::optional<int64_t> integer() const;
  /// Returns any number.
  [[nodiscard]] std::optional<double> number() const;
  [[nodiscard]] std::optional<std::string_view> text() const;
  /// Returns the items of an array of strings.
  [[nodiscard]] std::optional<std::vector<std::string_view>> texts() const;
  /// Returns the items of an array of integers or bools.
  [[nodiscard]] std::optional<std::vector<int64_t>> integers() const;
  /// Returns the items of an array of numbers.
  [[nodiscard]] std::optional<std::vector<double>> numbers() const;

 private:
  ValueType type_ = ValueType::kU8;
  ValueType element_ = ValueType::kU8;  // of an array
  uint64_t count_ = 0;                  // of an array
  std::span<const std::byte> bytes_;
};

}  // namespace millrace::gguf
