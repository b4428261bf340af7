#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace millrace::text::jinja {

enum class TokenType {
  kText,
  kPrintBegin,  // {{
  kPrintEnd,
  kBlockBegin,  // {%
  kBlockEnd,
  kName,
  kString,
  kInteger,
  kFloat,
  kOperator,
  kEnd,
};

struct Token {
  TokenType type = TokenType::kEnd;
  int line = 1;
  std::string text;  ///< of a string: its value; of an integer or float: its digits, without underscores

  [[nodiscard]] bool is_operator(std::string_view op) const { return type == TokenType::kOperator && text == op; }
  [[nodiscard]] bool is_name(std::string_view name) const { return type == TokenType::kName && text == name; }
};

/// Cuts a template into tokens, comments and white space already handled as Jinja does with trim_blocks and
/// lstrip_blocks on and keep_trailing_newline off. The last token is kEnd. Throws TemplateError.
[[nodiscard]] std::vector<Token> tokenize(std::string_view source);

}  // namespace millrace::text::jinja
