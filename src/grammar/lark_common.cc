#include "grammar/lark_common.h"

#include <algorithm>
#include <array>
#include <utility>

namespace millrace::grammar {
namespace {

constexpr std::array<std::pair<std::string_view, std::string_view>, 24> kTerminals = {
    {{"DIGIT", "[0-9]"},
     {"HEXDIGIT", "[a-fA-F0-9]"},
     {"INT", "[0-9]+"},
     {"SIGNED_INT", "[+-]?[0-9]+"},
     {"DECIMAL", "[0-9]+\\.[0-9]*|\\.[0-9]+"},
     {"FLOAT", "[0-9]+[eE][+-]?[0-9]+|([0-9]+\\.[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?"},
     {"SIGNED_FLOAT", "[+-]?([0-9]+[eE][+-]?[0-9]+|([0-9]+\\.[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?)"},
     {"NUMBER", "([0-9]+(\\.[0-9]*)?|\\.[0-9]+)([eE][+-]?[0-9]+)?"},
     {"SIGNED_NUMBER", "[+-]?([0-9]+(\\.[0-9]*)?|\\.[0-9]+)([eE][+-]?[0-9]+)?"},
     {"ESCAPED_STRING", "\"([^\"\\\\\\n]|\\\\.)*\""},
     {"LCASE_LETTER", "[a-z]"},
     {"UCASE_LETTER", "[A-Z]"},
     {"LETTER", "[a-zA-Z]"},
     {"WORD", "[a-zA-Z]+"},
     {"CNAME", "[_a-zA-Z][_a-zA-Z0-9]*"},
     {"WS_INLINE", "[ \\t]+"},
     {"WS", "[ \\t\\f\\r\\n]+"},
     {"CR", "\\r"},
     {"LF", "\\n"},
     {"NEWLINE", "(\\r?\\n)+"},
     {"SH_COMMENT", "#[^\\n]*"},
     {"CPP_COMMENT", "//[^\\n]*"},
     {"C_COMMENT", "/\\*([^*]|\\*+[^*/])*\\*+/"},
     {"SQL_COMMENT", "--[^\\n]*"}}};

}  // namespace

std::optional<std::string_view> lark_common_terminal(std::string_view name) {
  const auto* const found = std::ranges::find(kTerminals, name, [](const auto& row) { return row.first; });
  if (found == kTerminals.end()) return std::nullopt;
  return found->second;
}

}  // namespace millrace::grammar
