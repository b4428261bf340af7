#include "text/chat_template/tool_definitions.h"

#include "text/chat_template/jinja_json.h"

namespace millrace::text {
namespace {

using jinja::DictObject;
using jinja::Heap;
using jinja::Kind;
using jinja::Value;

/// Returns whether a dict lacks a member, or has null there.
bool lacks(const DictObject& dict, std::string_view name) {
  const Value* member = dict.find(name);
  return member == nullptr || member->is(Kind::kNone);
}

Value make_object(Heap& heap) {
  return Value::dict(heap.make<DictObject>(heap));
}

/// Gives the properties of a schema, and those within them, a form that templates read: an object, whose description is
/// a text.
void complete_schema(const Value& schema, Heap& heap) {
  DictObject& members = schema.entries();
  const Value* description = members.find("description");
  if (description != nullptr && description->is(Kind::kNone)) members.erase(heap.string("description"));
  const Value* properties = members.find("properties");
  if (properties != nullptr && properties->is(Kind::kDict)) {
    for (auto& [name, property] : properties->entries().entries) {
      if (!property.is(Kind::kDict)) property = make_object(heap);  // true: any value
      complete_schema(property, heap);
      if (lacks(property.entries(), "description")) {
        property.entries().set(heap.string("description"), heap.string(""));
      }
    }
  }
  const Value* items = members.find("items");
  if (items != nullptr && items->is(Kind::kDict)) complete_schema(*items, heap);
}

void complete_function(DictObject& function, Heap& heap) {
  if (lacks(function, "description")) function.set(heap.string("description"), heap.string(""));
  const Value* given = function.find("parameters");
  const Value parameters = given != nullptr && given->is(Kind::kDict) ? *given : make_object(heap);
  if (lacks(parameters.entries(), "type")) parameters.entries().set(heap.string("type"), heap.string("object"));
  if (lacks(parameters.entries(), "properties")) {
    parameters.entries().set(heap.string("properties"), make_object(heap));
  }
  complete_schema(parameters, heap);
  function.set(heap.string("parameters"), parameters);
}

std::vector<std::string> other_forms(std::string_view tools_json, Heap& heap) {
  const Value tools = jinja::parse_json(tools_json, "tools", heap);
  if (!tools.is(Kind::kList)) return {};
  std::vector<Value> functions;
  for (const Value& tool : tools.items()) {
    const Value* function = tool.is(Kind::kDict) ? tool.entries().find("function") : nullptr;
    if (function == nullptr || !function->is(Kind::kDict)) return {};
    complete_function(function->entries(), heap);
    functions.push_back(*function);
  }
  return {jinja::dump_json(tools, {}), jinja::dump_json(heap.list(functions), {})};
}

}  // namespace

std::vector<std::string> other_tool_forms(std::string_view tools_json, Heap& heap) {
  try {
    return other_forms(tools_json, heap);
  } catch (const jinja::TemplateError&) {
    return {};
  }
}

std::string sorted_by_name(std::string_view tools_json, Heap& heap) {
  try {
    return jinja::dump_json(jinja::parse_json(tools_json, "tools", heap), {.sort_keys = true});
  } catch (const jinja::TemplateError&) {
    return std::string(tools_json);
  }
}

}  // namespace millrace::text
