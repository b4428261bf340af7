#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/chat_template/message_shapes.h"

/// Messages that call tools and messages with results, as templates receive them.
namespace millrace::text {

/// Returns a member that is a text and not empty, or null.
[[nodiscard]] const jinja::Value* text_member(const jinja::Value& value, std::string_view name);
/// Returns whether a message has the result of a call.
[[nodiscard]] bool is_result(const jinja::Value& message);
/// Returns the calls of a message, or null if it has none.
[[nodiscard]] const std::vector<jinja::Value>* calls_of(const jinja::Value& message);
/// Returns the index of the call that a result names by its id. Of calls with one id, the first that is not taken.
[[nodiscard]] std::optional<size_t> call_named(const std::vector<jinja::Value>& calls, const jinja::Value& result,
                                               const std::vector<bool>& taken);

/// A conversation with two calls and their results, with which templates are probed. The members say what it has.
struct CallProbe {
  static constexpr std::string_view kFirstId = "call12345";
  static constexpr std::string_view kSecondId = "call67890";
  static constexpr std::string_view kFirstName = "probe_one";
  static constexpr std::string_view kSecondName = "probe_two";
  static constexpr std::string_view kFirstResult = "probe result one";
  static constexpr std::string_view kSecondResult = "probe result two";

  size_t calls = 2;
  bool are_apart = false;  ///< each call has a message of its own, and its result follows
  bool has_ids = true;
  bool has_names = false;  ///< of results
  bool are_ids_swapped = false;
  std::string_view text = {};  ///< of the first call's message, or of a message before it if `is_text_apart`
  bool is_text_apart = false;
  bool has_result_parts = false;    ///< the first result consists of both results as text parts
  std::string_view following = {};  ///< further messages, each after a comma

  /// Returns the text in the first form of messages that the template renders with the first result.
  [[nodiscard]] std::optional<std::string> rendered(const MessageShapes::Render& render) const;

 private:
  [[nodiscard]] std::string messages(std::string_view no_content, std::string_view arguments) const;
};

}  // namespace millrace::text
