#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "text/chat_template/jinja_eval.h"

namespace millrace::text::jinja {

// Each returns null for a name it does not know.
[[nodiscard]] const Builtin* find_filter(std::string_view name);
[[nodiscard]] const Builtin* find_test(std::string_view name);
[[nodiscard]] const Builtin* find_function(std::string_view name);
/// Returns a method of the values of `kind`.
[[nodiscard]] const Builtin* find_method(Kind kind, std::string_view name);

/// Puts the arguments in the order of the builtin's parameters; throws as Python does for a wrong call.
void bind_arguments(const Builtin& builtin, CallArguments& arguments);

/// Shared by filters and methods. Each throws TemplateError.
[[nodiscard]] int64_t int_argument(const Value& value, int64_t fallback);
[[nodiscard]] std::string_view string_argument(const Value& value, std::string_view fallback);
[[nodiscard]] std::string strip(std::string_view text, const Value& chars, bool left, bool right);
[[nodiscard]] std::string capitalize(std::string_view text);
/// Python's str.replace; a negative count replaces all.
[[nodiscard]] std::string replace(Evaluator& evaluator, std::string_view text, std::string_view from,
                                  std::string_view to, int64_t count);
[[nodiscard]] std::string join(Evaluator& evaluator, const std::vector<Value>& items, std::string_view separator);
/// Returns the text of `value` with HTML's characters escaped, unless it is Markup.
[[nodiscard]] std::string escaped(const Value& value);
[[nodiscard]] std::string escape_html(std::string_view text);
/// Returns what a format writes for `value` into Markup.
[[nodiscard]] Value escaped_argument(Evaluator& evaluator, const Value& value);
/// Returns a string that is Markup if `source` is.
[[nodiscard]] Value string_like(Evaluator& evaluator, const Value& source, std::string text);
/// Returns the filters that lay text and lists out, which have a table of their own.
[[nodiscard]] std::span<const Builtin> layout_filters();
/// Returns the methods of strings.
[[nodiscard]] std::span<const Builtin> string_methods();
/// Python's `text % values`.
[[nodiscard]] std::string percent_format(Evaluator& evaluator, const Value& format, const Value& values);
/// Python's str.format with {} {0} {name} {name.attribute} {name[key]}, !r !s, and the usual format specs.
[[nodiscard]] std::string brace_format(Evaluator& evaluator, std::string_view format, const CallArguments& arguments);
/// Returns the length of a value that has one.
[[nodiscard]] std::optional<int64_t> length_of(const Value& value);
[[nodiscard]] Value tuple_of(Evaluator& evaluator, const Value& first, const Value& second);

}  // namespace millrace::text::jinja
