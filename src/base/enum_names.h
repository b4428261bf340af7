#pragma once

#include <concepts>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

/// Names of enum values. Each enum that a flag or a message carries has one table, which serves parsing, help and
/// printing:
///
///   enum class Colour : uint8_t { kRed, kBlue };
///   inline constexpr EnumName<Colour> kColourNames[] = {{Colour::kRed, "red"}, {Colour::kBlue, "blue"}};
///   constexpr std::span<const EnumName<Colour>> enum_names(Colour) { return kColourNames; }
namespace millrace {

template <class E>
struct EnumName {
  E value{};
  std::string_view name;
};

/// An enum whose own namespace has a function `enum_names` with its table.
template <class E>
concept NamedEnum = std::is_enum_v<E> && requires(E value) {
  { enum_names(value) } -> std::same_as<std::span<const EnumName<E>>>;
};

/// Returns the name of `value`, or "unknown" for a number that the table does not have.
template <NamedEnum E>
[[nodiscard]] constexpr std::string_view enum_name(E value) {
  for (const EnumName<E>& each : enum_names(E{})) {
    if (each.value == value) return each.name;
  }
  return "unknown";
}

/// Returns the value that is called `name`.
template <NamedEnum E>
[[nodiscard]] constexpr std::optional<E> parse_enum(std::string_view name) {
  for (const EnumName<E>& each : enum_names(E{})) {
    if (each.name == name) return each.value;
  }
  return std::nullopt;
}

/// Returns all names in the order of the table, separated by ", ".
template <NamedEnum E>
[[nodiscard]] std::string joined_enum_names() {
  std::string names;
  for (const EnumName<E>& each : enum_names(E{})) names.append(names.empty() ? "" : ", ").append(each.name);
  return names;
}

}  // namespace millrace
