#include "text/chat_template/chat_template.h"

#include <fmt/format.h>
#include <simdjson.h>
#include <string.h>  // memmem

#include <cctype>

#include "base/text_file.h"
#include "text/tool_calls/output_parser.h"
#include "text/chat_template/jinja_builtins.h"
#include "text/chat_template/jinja_eval.h"
#include "text/chat_template/jinja_json.h"
#include "text/chat_template/jinja_parser.h"

namespace millrace::text {
namespace {

using jinja::Kind;
using jinja::TemplateError;
using jinja::Value;

constexpr std::string_view kDefaultName = "default";
constexpr std::string_view kToolName = "tool_use";

/// The text of the last message that continue_final_message continues.
std::string final_text(const Value& messages) {
  if (!messages.is(Kind::kList) || messages.items().empty() || !messages.items().back().is(Kind::kDict)) {
    jinja::fail("continue_final_message: there is no final message");
  }
  const Value* content = messages.items().back().entries().find("content");
  if (content != nullptr && content->is(Kind::kString)) return content->string();
  if (content != nullptr && content->is(Kind::kList)) {
    for (auto part = content->items().rbegin(); part != content->items().rend(); ++part) {
      const Value* text = part->is(Kind::kDict) ? part->entries().find("text") : nullptr;
      if (text != nullptr && text->is(Kind::kString)) return text->string();
    }
  }
  jinja::fail("continue_final_message: the final message has no text");
}

/// text.rfind(part) in linear time, which memmem takes and the standard library's searches do not.
size_t find_last(std::string_view text, std::string_view part) {
  const std::string reversed_text(text.rbegin(), text.rend());
  const std::string reversed_part(part.rbegin(), part.rend());
  const void* found = memmem(reversed_text.data(), text.size(), reversed_part.data(), part.size());
  if (found == nullptr) return std::string_view::npos;
  return text.size() - part.size() - static_cast<size_t>(static_cast<const char*>(found) - reversed_text.data());
}

/// Ends the rendered chat where the final message's content ends, as transformers does: at its last occurrence.
void cut_after_final_message(const Value& messages, std::string& rendered) {
  const std::string text = final_text(messages);
  const std::string stripped = jinja::strip(text, Value::absent(), true, true);
  const size_t at = find_last(rendered, stripped);
  if (at == std::string::npos) jinja::fail("continue_final_message: the template does not show the final message");
  const bool keeps_spaces = rendered.compare(at, text.size(), text) == 0;
  rendered.resize(at + (keeps_spaces ? text.size() : stripped.size()));
}

constexpr size_t kConfigHeapBytes = size_t{256} << 20;

Value parse_config(std::string_view json, jinja::Heap& heap) {
  const Value config = jinja::parse_json(json, "tokenizer_config.json", heap);
  if (!config.is(Kind::kDict)) jinja::fail("tokenizer_config.json: not an object");
  return config;
}

ChatTemplate::SpecialTokens named_tokens(const Value& config) {
  ChatTemplate::SpecialTokens tokens;
  for (const auto& [key, value] : config.entries().entries) {
    if (!key.string().ends_with("_token")) continue;
    const Value* content = value.is(Kind::kDict) ? value.entries().find("content") : &value;
    if (content != nullptr && content->is(Kind::kString)) tokens[key.string()] = content->string();
  }
  return tokens;
}

bool is_word_byte(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
}

/// Whether `word` stands in `source` as a name, and not as a part of one.
bool has_word(std::string_view source, std::string_view word) {
  for (size_t at = source.find(word); at != std::string_view::npos; at = source.find(word, at + 1)) {
    const size_t end = at + word.size();
    if ((at == 0 || !is_word_byte(source[at - 1])) && (end == source.size() || !is_word_byte(source[end]))) return true;
  }
  return false;
}

Error to_error(ErrorCode code, const TemplateError& error) {
  if (error.line == 0) return Error{code, "chat template: " + error.message};
  return Error{code, fmt::format("chat template, line {}: {}", error.line, error.message)};
}

}  // namespace

ChatTemplate::ChatTemplate() = default;
ChatTemplate::~ChatTemplate() = default;

Result<std::shared_ptr<const ChatTemplate>> ChatTemplate::load(const std::filesystem::path& model_dir) {
  const auto source = read_optional_text_file(model_dir / "chat_template.jinja");
  if (source.has_error()) return source.error();
  const auto config = read_optional_text_file(model_dir / "tokenizer_config.json");
  if (config.has_error()) return config.error();
  auto made = from_source(*source, *config);
  if (made.has_error()) return Error{made.error().code, model_dir.string() + ": " + made.error().message};
  return made;
}

Result<std::shared_ptr<const ChatTemplate>> ChatTemplate::from_source(std::string_view source,
                                                                      std::string_view config_json) {
  try {
    std::shared_ptr<ChatTemplate> made(new ChatTemplate());
    if (!source.empty()) made->add_template(std::string(kDefaultName), source);
    if (!config_json.empty()) made->read_config(config_json, source.empty());
    if (made->templates_.empty()) return make_error(ErrorCode::kNotFound, "the model has no chat template");
    return std::shared_ptr<const ChatTemplate>(std::move(made));
  } catch (const TemplateError& error) {
    return to_error(ErrorCode::kData, error);
  }
}

Result<std::shared_ptr<const ChatTemplate>> ChatTemplate::with_tokens(std::string_view source, SpecialTokens tokens) {
  try {
    std::shared_ptr<ChatTemplate> made(new ChatTemplate());
    made->add_template(std::string(kDefaultName), source);
    made->special_tokens_ = std::move(tokens);
    return std::shared_ptr<const ChatTemplate>(std::move(made));
  } catch (const TemplateError& error) {
    return to_error(ErrorCode::kData, error);
  }
}

Result<ChatTemplate::SpecialTokens> ChatTemplate::tokens_of(std::string_view config_json) {
  if (config_json.empty()) return SpecialTokens();
  try {
    jinja::Heap heap(kConfigHeapBytes);
    return named_tokens(parse_config(config_json, heap));
  } catch (const TemplateError& error) {
    return to_error(ErrorCode::kData, error);
  }
}

void ChatTemplate::add_template(std::string name, std::string_view source) {
  templates_[std::move(name)] = jinja::parse_template(source);
  if (const auto format = detect_tool_format(source)) tool_format_ = format;
  supports_tools_ = supports_tools_ || has_word(source, "tools");
  has_reasoning_ = has_reasoning_ || template_has_reasoning(source);
}

void ChatTemplate::read_config(std::string_view config_json, bool with_templates) {
  jinja::Heap heap(kConfigHeapBytes);
  const Value config = parse_config(config_json, heap);
  special_tokens_ = named_tokens(config);
  const Value* templates = config.entries().find("chat_template");
  if (!with_templates || templates == nullptr) return;
  if (templates->is(Kind::kString)) return add_template(std::string(kDefaultName), templates->string());
  if (!templates->is(Kind::kList)) return;
  for (const Value& item : templates->items()) {
    const Value* name = item.is(Kind::kDict) ? item.entries().find("name") : nullptr;
    const Value* source = item.is(Kind::kDict) ? item.entries().find("template") : nullptr;
    if (name == nullptr || source == nullptr || !name->is(Kind::kString) || !source->is(Kind::kString)) {
      jinja::fail("tokenizer_config.json: an entry of chat_template has no name or no template");
    }
    add_template(name->string(), source->string());
  }
}

std::vector<std::string> ChatTemplate::template_names() const {
  std::vector<std::string> names;
  for (const auto& entry : templates_) names.push_back(entry.first);
  return names;
}

const jinja::TemplateTree& ChatTemplate::select(const ChatInput& input) const {
  std::string_view name = input.template_name;
  if (name.empty()) name = !input.tools_json.empty() && templates_.count(kToolName) > 0 ? kToolName : kDefaultName;
  const auto it = templates_.find(name);
  if (it != templates_.end()) return *it->second;
  if (input.template_name.empty() && templates_.size() == 1) return *templates_.begin()->second;
  jinja::fail("there is no template named '", name, "'");
}

Result<std::string> ChatTemplate::render(const ChatInput& input) const {
  const jinja::Limits limits;
  jinja::Heap heap(limits.heap_bytes, limits.steps);
  try {
    const jinja::TemplateTree& tree = select(input);
    auto* context = heap.make<jinja::DictObject>(heap);
    const auto set = [&](std::string_view name, const Value& value) {
      context->set(heap.string(std::string(name)), value);
    };
    const auto parse_optional = [&](std::string_view json, std::string_view what) {
      return json.empty() ? Value() : jinja::parse_json(json, what, heap);
    };
    const auto set_members = [&](std::string_view json, std::string_view what) {
      const Value kwargs = parse_optional(json, what);
      if (kwargs.is(Kind::kDict)) {
        for (const auto& [key, value] : kwargs.entries().entries) context->set(key, value);
      } else if (!kwargs.is(Kind::kNone)) {
        jinja::fail(what, " is not an object");
      }
    };
    set_members(input.default_kwargs_json, "default_chat_template_kwargs");
    const Value messages = jinja::parse_json(input.messages_json, "messages", heap);
    set("messages", messages);
    set("tools", parse_optional(input.tools_json, "tools"));
    set("documents", parse_optional(input.documents_json, "documents"));
    if (!input.reasoning_effort.empty()) set("reasoning_effort", heap.string(std::string(input.reasoning_effort)));
    if (input.enable_thinking) set("enable_thinking", Value(*input.enable_thinking));
    set("add_generation_prompt", Value(input.add_generation_prompt));
    for (const auto& [name, text] : special_tokens_) set(name, heap.string(text));
    set_members(input.kwargs_json, "chat_template_kwargs");
    std::string rendered = jinja::Evaluator(tree, heap, *context, input.now, limits).render();
    if (input.continue_final_message) cut_after_final_message(messages, rendered);
    return rendered;
  } catch (const TemplateError& error) {
    return to_error(ErrorCode::kInvalidArgument, error);
  }
}

}  // namespace millrace::text
