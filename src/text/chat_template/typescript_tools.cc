#include "text/chat_template/typescript_tools.h"

#include <algorithm>
#include <array>
#include <span>
#include <utility>
#include <vector>

#include "text/chat_template/jinja_json.h"

namespace millrace::text {
namespace {

using jinja::Heap;
using jinja::is_true;
using jinja::Kind;
using jinja::Value;

constexpr std::string_view kIndent = "  ";
constexpr std::string_view kRootName = "parameters";
constexpr std::string_view kDefinitions = "#/$defs/";

/// What a schema is written as. Of several keywords the first that is listed here counts.
enum class Form : uint8_t { kAny, kNull, kReference, kAnyOf, kEnum, kTypes, kObject, kArray, kScalar };

/// A schema that has no form in TypeScript.
struct NoForm {};

const Value* find(const Value& dict, std::string_view name) {
  return dict.is(Kind::kDict) ? dict.entries().find(name) : nullptr;
}

const std::string& string_of(const Value& value) {
  if (!value.is(Kind::kString)) throw NoForm();
  return value.string();
}

std::span<const Value> list_of(const Value& value) {
  if (!value.is_sequence()) throw NoForm();
  return value.items();
}

Form form_of(const Value& schema) {
  if (schema.is(Kind::kBool)) return schema.boolean() ? Form::kAny : Form::kNull;
  if (!schema.is(Kind::kDict)) throw NoForm();
  if (schema.entries().entries.empty()) return Form::kAny;
  if (find(schema, "$ref") != nullptr) return Form::kReference;
  if (find(schema, "anyOf") != nullptr) return Form::kAnyOf;
  if (find(schema, "enum") != nullptr) return Form::kEnum;
  const Value* type = find(schema, "type");
  if (type == nullptr) throw NoForm();
  if (type->is_sequence()) return Form::kTypes;
  const std::string& name = string_of(*type);
  return name == "object" ? Form::kObject : name == "array" ? Form::kArray : Form::kScalar;
}

/// Returns the keywords that a comment names, in the order in which it does.
std::span<const std::string_view> commented_keywords(const Value& schema, Form form) {
  static constexpr std::array<std::string_view, 2> kOfArrays = {"maxItems", "minItems"};
  static constexpr std::array<std::string_view, 3> kOfStrings = {"maxLength", "minLength", "pattern"};
  static constexpr std::array<std::string_view, 2> kOfNumbers = {"maximum", "minimum"};
  if (form == Form::kArray) return kOfArrays;
  if (form != Form::kScalar) return {};
  const std::string& type = find(schema, "type")->string();
  if (type == "string") return kOfStrings;
  if (type == "number" || type == "integer") return kOfNumbers;
  return {};
}

/// Appends each line of a description as a comment.
void append_comment(std::string_view description, std::string_view indent, std::string& out) {
  for (;;) {
    const std::string_view line = description.substr(0, description.find('\n'));
    if (!line.empty()) out.append(indent).append("// ").append(line);
    out += '\n';
    if (line.size() == description.size()) return;
    description.remove_prefix(line.size() + 1);
  }
}

/// Returns the comments before a value of the schema.
std::string comments_of(const Value& schema, std::string_view indent) {
  std::string out;
  const Form form = form_of(schema);
  const Value* description = find(schema, "description");
  if (description != nullptr && is_true(*description)) append_comment(string_of(*description), indent, out);
  std::string bounds;
  for (const std::string_view keyword : commented_keywords(schema, form)) {
    const Value* bound = find(schema, keyword);
    if (bound == nullptr) continue;
    bounds.append(bounds.empty() ? "" : ", ").append(keyword).append(": ").append(jinja::to_str(*bound));
  }
  if (!bounds.empty()) out.append(indent).append("// ").append(bounds).append("\n");
  return out;
}

std::string joined(std::span<const std::string> parts, std::string_view separator) {
  std::string out;
  for (const std::string& part : parts) out.append(out.empty() ? std::string_view() : separator).append(part);
  return out;
}

std::string type_word(const Value& type) {
  static constexpr std::array<std::pair<std::string_view, std::string_view>, 7> kWords = {{{"string", "string"},
                                                                                           {"number", "number"},
                                                                                           {"integer", "number"},
                                                                                           {"boolean", "boolean"},
                                                                                           {"null", "null"},
                                                                                           {"object", "{}"},
                                                                                           {"array", "Array<any>"}}};
  const auto* word = std::ranges::find(kWords, string_of(type), &std::pair<std::string_view, std::string_view>::first);
  if (word == kWords.end()) throw NoForm();
  return std::string(word->second);
}

/// Returns whether a value of an enum is of the type that stands next to the enum.
bool is_of_type(const Value& value, std::string_view type) {
  if (value.is(Kind::kNone)) return true;
  if (type == "string") return value.is(Kind::kString);
  if (type == "number") return value.is_number();
  if (type == "integer") return value.is_integral() || value.is(Kind::kBigInt);
  return type != "boolean" || value.is(Kind::kBool);
}

void check_enum(const Value& schema) {
  const Value* type = find(schema, "type");
  if (type == nullptr) return;
  std::string_view name;
  if (type->is_sequence()) {
    const std::vector<Value>& types = type->items();
    const auto is_null = [](const Value& each) { return each.is(Kind::kString) && each.string() == "null"; };
    if (types.empty() || types.size() > 2 || (types.size() == 2 && !std::ranges::any_of(types, is_null)))
      throw NoForm();
    name = string_of(types.size() == 2 && is_null(types.front()) ? types.back() : types.front());
  } else {
    name = string_of(*type);
  }
  for (const Value& value : list_of(*find(schema, "enum"))) {
    if (!is_of_type(value, name)) throw NoForm();
  }
}

std::string enum_type(const Value& schema) {
  check_enum(schema);
  std::vector<std::string> values;
  for (const Value& value : list_of(*find(schema, "enum"))) {
    values.push_back(value.is(Kind::kString) ? "\"" + value.string() + "\"" : jinja::to_str(value));
  }
  return joined(values, " | ");
}

/// Writes the declaration of one function. Lives for one call of write().
class FunctionWriter {
 public:
  explicit FunctionWriter(Heap& heap) : heap_(heap) {}

  std::string write(const Value& function);

 private:
  /// Notes definitions, and whether the schema refers to itself as a whole.
  void look_through(const Value& schema);
  void look_through_object(const Value& schema);
  std::string interfaces(const Value& parameters);
  [[nodiscard]] std::string reference(const Value& schema) const;
  std::string type(const Value& schema, const std::string& indent);
  std::string array_type(const Value& schema, const std::string& indent);
  std::string object_type(const Value& schema, const std::string& indent);
  /// Appends the properties of an object that are required, those that are not, or all.
  void add_properties(const Value& schema, std::optional<bool> required, const std::string& indent,
                      std::vector<std::string>& out);
  std::string parameter(std::string_view name, const Value& schema, bool is_optional, const std::string& indent);

  Heap& heap_;
  std::vector<std::pair<std::string, Value>> definitions_;
  bool refers_to_itself_ = false;
};

void FunctionWriter::look_through_object(const Value& schema) {
  if (const Value* definitions = find(schema, "$defs"); definitions != nullptr && is_true(*definitions)) {
    if (!definitions->is(Kind::kDict)) throw NoForm();
    for (const auto& [name, definition] : definitions->entries().entries) {
      const auto known = std::ranges::find(definitions_, name.string(), &std::pair<std::string, Value>::first);
      if (known != definitions_.end()) {
        known->second = definition;
      } else {
        definitions_.emplace_back(name.string(), definition);
      }
    }
  }
  const Value* others = find(schema, "additionalProperties");
  if (others != nullptr && others->is(Kind::kDict)) look_through(*others);
  const Value* properties = find(schema, "properties");
  if (properties == nullptr) return;
  if (!properties->is(Kind::kDict)) throw NoForm();
  for (const auto& [name, property] : properties->entries().entries) look_through(property);
}

void FunctionWriter::look_through(const Value& schema) {
  switch (form_of(schema)) {
    case Form::kReference: refers_to_itself_ = refers_to_itself_ || string_of(*find(schema, "$ref")) == "#"; return;
    case Form::kAnyOf:
      for (const Value& way : list_of(*find(schema, "anyOf"))) look_through(way);
      return;
    case Form::kObject: return look_through_object(schema);
    case Form::kArray:
      if (const Value* items = find(schema, "items"); items != nullptr && is_true(*items)) look_through(*items);
      return;
    default: return;
  }
}

std::string FunctionWriter::reference(const Value& schema) const {
  const std::string& target = string_of(*find(schema, "$ref"));
  if (target == "#") return std::string(kRootName);
  const std::string name = target.substr(target.rfind('/') + 1);
  const bool is_known =
      std::ranges::find(definitions_, name, &std::pair<std::string, Value>::first) != definitions_.end();
  if (!target.starts_with(kDefinitions) || !is_known) throw NoForm();
  return name;
}

std::string FunctionWriter::type(const Value& schema, const std::string& indent) {
  std::vector<std::string> ways;
  switch (form_of(schema)) {
    case Form::kAny: return "any";
    case Form::kNull: return "null";
    case Form::kReference: return reference(schema);
    case Form::kEnum: return enum_type(schema);
    case Form::kObject: return object_type(schema, indent);
    case Form::kArray: return array_type(schema, indent);
    case Form::kAnyOf:
      for (const Value& way : list_of(*find(schema, "anyOf"))) ways.push_back(type(way, indent));
      return joined(ways, " | ");
    case Form::kTypes:
      for (const Value& word : list_of(*find(schema, "type"))) ways.push_back(type_word(word));
      return joined(ways, " | ");
    case Form::kScalar: break;
  }
  const std::string& name = find(schema, "type")->string();
  return name == "integer" ? "number" : name;
}

std::string FunctionWriter::array_type(const Value& schema, const std::string& indent) {
  const Value* items = find(schema, "items");
  if (items == nullptr || !is_true(*items)) return "Array<any>";
  const std::string inner = indent + std::string(kIndent);
  const std::string comments = comments_of(*items, inner);
  if (comments.empty()) return "Array<" + type(*items, indent) + ">";
  return "Array<\n" + comments + inner + type(*items, inner) + "\n" + indent + ">";
}

void FunctionWriter::add_properties(const Value& schema, std::optional<bool> required, const std::string& indent,
                                    std::vector<std::string>& out) {
  const Value* properties = find(schema, "properties");
  if (properties == nullptr) return;
  const Value* list = find(schema, "required");
  const std::span<const Value> names = list == nullptr ? std::span<const Value>() : list_of(*list);
  for (const auto& [name, property] : properties->entries().entries) {
    const bool is_required = std::ranges::any_of(names, [&](const Value& each) { return jinja::equals(each, name); });
    if (is_required == required.value_or(is_required)) {
      out.push_back(parameter(name.string(), property, !is_required, indent));
    }
  }
}

std::string FunctionWriter::object_type(const Value& schema, const std::string& indent) {
  const std::string inner = indent + std::string(kIndent);
  std::vector<std::string> members;
  add_properties(schema, true, inner, members);
  add_properties(schema, false, inner, members);
  if (const Value* others = find(schema, "additionalProperties"); others != nullptr && !others->is(Kind::kNone)) {
    const bool is_never = others->is(Kind::kBool) && !others->boolean();
    members.push_back(inner + "[k: string]: " + (is_never ? "never" : type(*others, inner)));
  }
  if (members.empty()) return "{}";
  return "{\n" + joined(members, ",\n") + "\n" + indent + "}";
}

std::string FunctionWriter::parameter(std::string_view name, const Value& schema, bool is_optional,
                                      const std::string& indent) {
  std::string out = comments_of(schema, indent);
  if (const Value* otherwise = find(schema, "default"); otherwise != nullptr && !otherwise->is(Kind::kNone)) {
    out.append(indent).append("// Default: ");
    out += otherwise->is_number() ? jinja::to_repr(*otherwise) : jinja::dump_json(*otherwise, {});
    out += '\n';
  }
  out.append(indent).append(name).append(is_optional ? "?: " : ": ").append(type(schema, indent));
  heap_.charge(out.size());
  return out;
}

std::string FunctionWriter::interfaces(const Value& parameters) {
  std::string out;
  if (refers_to_itself_) {
    std::vector<std::string> members;
    add_properties(parameters, std::nullopt, std::string(kIndent), members);
    out.append("interface ").append(kRootName).append(" {");
    if (!members.empty()) out.append("\n").append(joined(members, ",\n")).append("\n");
    out += "}\n";
  }
  // Definitions within definitions have names, but no interfaces.
  const std::vector<std::pair<std::string, Value>> shown = definitions_;
  for (const auto& [name, schema] : shown) {
    look_through(schema);
    if (!schema.is(Kind::kDict)) throw NoForm();
    const Value* description = find(schema, "description");
    if (description != nullptr && is_true(*description)) append_comment(string_of(*description), {}, out);
    out.append("interface ").append(name).append(" ").append(type(schema, {})).append("\n");
  }
  return out;
}

std::string FunctionWriter::write(const Value& function) {
  const Value* given = find(function, "parameters");
  const Value parameters =
      given != nullptr && is_true(*given) ? *given : Value::dict(heap_.make<jinja::DictObject>(heap_));
  if (!parameters.is(Kind::kDict)) throw NoForm();
  look_through_object(parameters);
  const bool is_named = refers_to_itself_;
  std::string out = interfaces(parameters);
  const Value* description = find(function, "description");
  if (description != nullptr && is_true(*description)) append_comment(string_of(*description), {}, out);
  const Value* name = find(function, "name");
  out.append("type ").append(name == nullptr ? "function" : string_of(*name)).append(" = (_: ");
  out.append(is_named ? std::string(kRootName) : object_type(parameters, {})).append(") => any;\n");
  return out;
}

}  // namespace

std::optional<std::string> typescript_of_tools(std::string_view tools_json, Heap& heap) {
  std::string functions;
  try {
    const Value tools = jinja::parse_json(tools_json, "tools", heap);
    if (!tools.is(Kind::kList)) return std::nullopt;
    for (const Value& tool : tools.items()) {
      const Value* type = find(tool, "type");
      const Value* function = find(tool, "function");
      const bool is_function = type != nullptr && type->is(Kind::kString) && type->string() == "function";
      if (!is_function || function == nullptr || !is_true(*function)) continue;
      functions += FunctionWriter(heap).write(*function);
    }
  } catch (const NoForm&) {
    return std::nullopt;
  } catch (const jinja::TemplateError&) {
    return std::nullopt;
  }
  if (functions.empty()) return functions;
  return "# Tools\n\n## functions\nnamespace functions {\n" + functions + "}\n";
}

}  // namespace millrace::text
