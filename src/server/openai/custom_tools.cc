#include "server/openai/custom_tools.h"

namespace millrace::server::openai {
namespace {

FieldError read_syntax(const std::string& path, Json value, InputGrammar& grammar) {
  std::string word;
  if (FieldError field_error = read_string(path, value, word)) return field_error;
  if (word != "lark" && word != "regex") {
    return bad_request("tools", "{}: found '{}', wanted lark or regex", path, word.substr(0, 64));
  }
  grammar.syntax = word == "lark" ? InputGrammar::Syntax::kLark : InputGrammar::Syntax::kRegex;
  return std::nullopt;
}

FieldError read_grammar(const std::string& path, JsonObject format, InputGrammar& grammar) {
  if (FieldError field_error = read_syntax(path + ".syntax", format["syntax"], grammar)) return field_error;
  return read_string(path + ".definition", format["definition"], grammar.definition);
}

}  // namespace

FieldError read_custom_format(const std::string& path, JsonObject custom, Tool& tool, std::string& description) {
  tool.is_custom = true;
  tool.parameters = custom_parameters();
  const Json given = custom["format"];
  if (is_absent(given)) return std::nullopt;
  JsonObject format;
  std::string type;
  const std::string format_path = path + ".format";
  if (!given.get(format)) return wrong_type(format_path, given, "an object");
  if (FieldError field_error = read_string(format_path + ".type", format["type"], type)) return field_error;
  if (type == "text") return std::nullopt;
  if (type != "grammar") {
    return bad_request("tools", "{}.type: found '{}', wanted text or grammar", format_path, type.substr(0, 64));
  }
  JsonObject nested;
  const bool is_nested = format["grammar"].get(nested);
  InputGrammar& grammar = tool.input.emplace();
  if (FieldError field_error =
          read_grammar(is_nested ? format_path + ".grammar" : format_path, is_nested ? nested : format, grammar)) {
    return field_error;
  }
  tool.is_strict = true;
  description += fmt::format("{}The input has to match this {} grammar:\n{}", description.empty() ? "" : "\n\n",
                             grammar.syntax == InputGrammar::Syntax::kLark ? "lark" : "regex", grammar.definition);
  return std::nullopt;
}

std::string_view custom_parameters() {
  return R"({"type":"object","properties":{"input":{"type":"string"}},"required":["input"],)"
         R"("additionalProperties":false})";
}

std::string custom_arguments(std::string_view input) {
  std::string out;
  JsonWriter(out).begin_object().member("input", input).end_object();
  return out;
}

}  // namespace millrace::server::openai
