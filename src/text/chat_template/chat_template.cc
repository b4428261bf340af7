#include "text/chat_template/chat_template.h"

#include <fmt/format.h>

#include <cctype>
#include <functional>

#include "base/json_value.h"
#include "base/log.h"
#include "base/text_file.h"
#include "text/chat_template/call_ids.h"
#include "text/chat_template/call_turns.h"
#include "text/chat_template/content_parts.h"
#include "text/chat_template/effort_words.h"
#include "text/chat_template/final_message.h"
#include "text/chat_template/jinja_builtins.h"
#include "text/chat_template/jinja_eval.h"
#include "text/chat_template/jinja_json.h"
#include "text/chat_template/jinja_parser.h"
#include "text/chat_template/message_shapes.h"
#include "text/chat_template/role_turns.h"
#include "text/chat_template/system_messages.h"
#include "text/chat_template/tool_definitions.h"
#include "text/chat_template/tool_results.h"
#include "text/chat_template/typescript_tools.h"
#include "text/tool_calls/response_template.h"

namespace millrace::text {
namespace {

using jinja::Kind;
using jinja::TemplateError;
using jinja::Value;

constexpr std::string_view kDefaultName = "default";
constexpr std::string_view kToolName = "tool_use";

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

/// Returns whether the model's tokenizer is the class that comes with Kimi, which sorts tools for its template.
bool sorts_tools(std::string_view config_json) {
  const auto document = JsonDocument::parse(config_json, kModelFileJson);
  std::string_view tokenizer_class;
  return document.has_value() && document->root()["tokenizer_class"].get(tokenizer_class) &&
         tokenizer_class == "TikTokenTokenizer";
}

bool is_word_byte(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
}

/// Returns whether `word` stands in `source` as a name, and not as a part of one.
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

/// The variable in which Kimi's template gets the tools as TypeScript.
constexpr std::string_view kTypescript = "tools_ts_str";

/// What a probe of a template may use: enough for any template, and little for one that loops.
constexpr jinja::Limits kProbeLimits = {
    .steps = 300'000, .heap_bytes = size_t{32} << 20, .output_bytes = size_t{4} << 20, .depth = 400};
constexpr std::string_view kProbeTools =
    R"([{"type":"function","function":{"name":"probe_tool","description":"A tool","parameters":{"type":"object",)"
    R"("properties":{"place":{"type":"string","description":"A text"}},"required":["place"]}}}])";
/// Tokens that a template may add to texts, where the model names none.
constexpr std::string_view kProbeTokens = R"({"bos_token":"","eos_token":"","pad_token":"","unk_token":""})";

/// Returns the template of chat_template.json, in which multimodal models may have their only one; empty without one.
Result<std::string> processor_template(const std::filesystem::path& model_dir) {
  const std::filesystem::path path = model_dir / "chat_template.json";
  const auto text = read_optional_text_file(path);
  if (text.has_error() || text->empty()) return text;
  const auto document = JsonDocument::parse(*text);
  if (document.has_error()) return make_error(ErrorCode::kData, "{}: {}", path.string(), document.error().message);
  const JsonValue member = document->root()["chat_template"];
  if (member.is_missing() || member.is_null()) return std::string();
  std::string_view source;
  if (!member.get(source))
    return make_error(ErrorCode::kData, "{}: chat_template is {}, wanted a text", path.string(),
                      to_short_json(member, 40));
  return std::string(source);
}

}  // namespace

struct ChatTemplate::Compiled {
  std::unique_ptr<jinja::TemplateTree> tree;
  MessageShapes shapes;
  SystemMessages system_messages;
  RoleTurns role_turns;
  CallIds call_ids;
  ToolResults tool_results;
  CallTurns call_turns;
  ContentParts content_parts;
  bool supports_documents = false;
  bool sorts_tools = false;  ///< members of tools are shown by name
  bool shows_typescript = false;
  bool wants_tools = false;  ///< it fails without a list of tools, and takes an empty one
  EffortWords effort_words;
};

ChatTemplate::ChatTemplate() = default;
ChatTemplate::~ChatTemplate() = default;

Result<std::shared_ptr<const ChatTemplate>> ChatTemplate::load(const std::filesystem::path& model_dir,
                                                               const SpecialTokens& tokens) {
  NamedSources files;
  const auto source = read_optional_text_file(model_dir / "chat_template.jinja");
  if (source.has_error()) return source.error();
  if (!source->empty()) files[std::string(kDefaultName)] = *source;
  std::error_code none;  // most models have no such folder
  for (const auto& file : std::filesystem::directory_iterator(model_dir / "additional_chat_templates", none)) {
    if (file.path().extension() != ".jinja") continue;
    auto text = read_text_file(file.path());
    if (text.has_error()) return text.error();
    files[file.path().stem().string()] = std::move(*text);
  }
  const auto config = read_optional_text_file(model_dir / "tokenizer_config.json");
  if (config.has_error()) return config.error();
  auto made = from_sources(files, *config, tokens);
  if (made.has_error() && made.error().code == ErrorCode::kNotFound) {
    auto of_processor = processor_template(model_dir);
    if (of_processor.has_error()) return of_processor.error();
    files[std::string(kDefaultName)] = std::move(*of_processor);
    if (!files[std::string(kDefaultName)].empty()) made = from_sources(files, *config, tokens);
  }
  if (made.has_error()) return Error{made.error().code, model_dir.string() + ": " + made.error().message};
  return made;
}

Result<std::shared_ptr<const ChatTemplate>> ChatTemplate::from_source(std::string_view source,
                                                                      std::string_view config_json) {
  NamedSources sources;
  if (!source.empty()) sources[std::string(kDefaultName)] = source;
  return from_sources(sources, config_json, {});
}

Result<std::shared_ptr<const ChatTemplate>> ChatTemplate::from_sources(const NamedSources& sources,
                                                                       std::string_view config_json,
                                                                       const SpecialTokens& tokens) {
  try {
    std::shared_ptr<ChatTemplate> made(new ChatTemplate());
    made->special_tokens_ = tokens;
    for (const auto& [name, source] : sources) made->add_template(name, source);
    if (!config_json.empty()) made->add_from_config(config_json);
    const bool sorts = sorts_tools(config_json);
    for (auto& [name, compiled] : made->templates_) compiled->sorts_tools = sorts;
    if (made->templates_.empty()) return make_error(ErrorCode::kNotFound, "the model has no chat template");
    made->probe();
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
    made->probe();
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
  auto compiled = std::make_unique<Compiled>();
  compiled->tree = jinja::parse_template(source);
  compiled->supports_documents = has_word(source, "documents");
  compiled->shows_typescript = has_word(source, kTypescript);
  templates_[std::move(name)] = std::move(compiled);
  if (const auto format = detect_tool_format(source)) tool_format_ = format;
  supports_tools_ = supports_tools_ || has_word(source, "tools");
  if (const auto format = detect_reasoning_format(source)) reasoning_format_ = format;
}

void ChatTemplate::add_from_config(std::string_view config_json) {
  jinja::Heap heap(kConfigHeapBytes);
  const Value config = parse_config(config_json, heap);
  for (auto& [name, token] : named_tokens(config)) special_tokens_.insert_or_assign(name, std::move(token));
  const auto add = [&](const std::string& name, const std::string& source) {
    if (!has_template(name)) add_template(name, source);
  };
  const Value* described = config.entries().find("response_template");
  if (described != nullptr && described->is(Kind::kDict)) {
    auto parsed = ResponseTemplate::parse(jinja::dump_json(*described, {}));
    if (parsed.has_value()) {
      response_template_ = std::move(*parsed);
    } else {
      log::warn("tokenizer_config.json: {}; it is not used", parsed.error().message);
    }
  }
  const Value* templates = config.entries().find("chat_template");
  if (templates == nullptr) return;
  if (templates->is(Kind::kString)) return add(std::string(kDefaultName), templates->string());
  // A model's own file is its only template, unless it says that there are more.
  if (!templates->is(Kind::kList) || has_template(kDefaultName)) return;
  for (const Value& item : templates->items()) {
    const Value* name = item.is(Kind::kDict) ? item.entries().find("name") : nullptr;
    const Value* source = item.is(Kind::kDict) ? item.entries().find("template") : nullptr;
    if (name == nullptr || source == nullptr || !name->is(Kind::kString) || !source->is(Kind::kString)) {
      jinja::fail("tokenizer_config.json: an entry of chat_template has no name or no template");
    }
    add(name->string(), source->string());
  }
}

void ChatTemplate::probe() {
  const std::tm now{.tm_mday = 1, .tm_year = 100};
  for (const auto& entry : templates_) {
    Compiled& compiled = *entry.second;
    const auto render_with = [&](const ChatInput& input, bool as_parts) -> std::optional<std::string> {
      jinja::Heap heap(kProbeLimits.heap_bytes, kProbeLimits.steps);
      try {
        const Value messages = jinja::parse_json(input.messages_json, "messages", heap);
        if (as_parts) MessageShapes::split_contents(messages, heap);
        const Value context = variables(input, messages, heap);
        return jinja::Evaluator(*compiled.tree, heap, context.entries(), now, kProbeLimits).render();
      } catch (const TemplateError&) {
        return std::nullopt;
      }
    };
    const auto render = [&](const std::string& messages_json, bool as_parts) {
      ChatInput input;
      input.messages_json = messages_json;
      input.tools_json = kProbeTools;
      input.default_kwargs_json = kProbeTokens;
      auto text = render_with(input, as_parts);
      if (text) return text;
      input.tools_json = {};
      return render_with(input, as_parts);
    };
    compiled.shapes = MessageShapes::probe(render);
    const std::string plain = R"([{"role":"user","content":"probe question"}])";
    if (!render(plain, false) && !render(plain, true)) continue;
    compiled.system_messages = SystemMessages::probe(render);
    compiled.role_turns = RoleTurns::probe(render);
    const auto renders_with_tools = [&](std::string_view tools) {
      ChatInput input;
      input.messages_json = plain;
      input.tools_json = tools;
      input.default_kwargs_json = kProbeTokens;
      return render_with(input, false).has_value() || render_with(input, true).has_value();
    };
    compiled.wants_tools = !renders_with_tools({}) && renders_with_tools("[]");
    const auto render_with_effort = [&](std::string_view effort) {
      ChatInput input;
      input.messages_json = plain;
      input.default_kwargs_json = kProbeTokens;
      input.reasoning_effort = effort;
      input.enable_thinking = false;
      const auto text = render_with(input, false);
      return text ? text : render_with(input, true);
    };
    compiled.effort_words = EffortWords::probe(render_with_effort);
    compiled.call_ids = CallIds::probe(render);
    compiled.tool_results = ToolResults::probe(render);
    compiled.call_turns = CallTurns::probe(render);
    compiled.content_parts = ContentParts::probe(render);
  }
}

std::vector<std::string> ChatTemplate::template_names() const {
  std::vector<std::string> names;
  for (const auto& entry : templates_) names.push_back(entry.first);
  return names;
}

const ChatTemplate::Compiled* ChatTemplate::find(const ChatInput& input) const {
  std::string_view name = input.template_name;
  if (name.empty()) name = !input.tools_json.empty() && has_template(kToolName) ? kToolName : kDefaultName;
  const auto it = templates_.find(name);
  if (it != templates_.end()) return it->second.get();
  return input.template_name.empty() && templates_.size() == 1 ? templates_.begin()->second.get() : nullptr;
}

bool ChatTemplate::supports_documents(const ChatInput& input) const {
  const Compiled* compiled = find(input);
  return compiled != nullptr && compiled->supports_documents;
}

Value ChatTemplate::variables(const ChatInput& input, const Value& messages, jinja::Heap& heap,
                              const std::optional<std::string>& typescript) const {
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
  set("messages", messages);
  set("tools", parse_optional(input.tools_json, "tools"));
  if (typescript) set(kTypescript, heap.string(*typescript));
  set("documents", parse_optional(input.documents_json, "documents"));
  if (!input.reasoning_effort.empty()) set("reasoning_effort", heap.string(std::string(input.reasoning_effort)));
  if (input.enable_thinking) {
    set("enable_thinking", Value(*input.enable_thinking));
    set("thinking", Value(*input.enable_thinking));  // the name in templates of DeepSeek, Granite and Kimi
  }
  set("add_generation_prompt", Value(input.add_generation_prompt));
  for (const auto& [name, text] : special_tokens_) set(name, heap.string(text));
  set_members(input.kwargs_json, "chat_template_kwargs");
  return Value::dict(context);
}

Result<std::string> ChatTemplate::render(const ChatInput& input) const {
  const jinja::Limits limits;
  // The limits apply to all attempts together.
  jinja::Heap heap(limits.heap_bytes, limits.steps);
  const Compiled* compiled = find(input);
  if (compiled == nullptr) {
    return make_error(ErrorCode::kInvalidArgument, "chat template: there is no template named '{}', wanted one of {}",
                      input.template_name, fmt::join(template_names(), ", "));
  }
  ChatInput shown = input;
  shown.reasoning_effort = compiled->effort_words.word_for(input.reasoning_effort);
  if (compiled->wants_tools && input.tools_json.empty()) shown.tools_json = "[]";
  std::string sorted;
  std::optional<std::string> typescript;
  if ((compiled->sorts_tools || compiled->shows_typescript) && !shown.tools_json.empty()) {
    sorted = sorted_by_name(shown.tools_json, heap);
    shown.tools_json = sorted;
    if (compiled->shows_typescript) typescript = typescript_of_tools(sorted, heap);
  }
  bool has_gaps = false;
  // Calls `change` with the adapted messages before they are rendered.
  const auto attempt = [&](const MessageShapes& shapes, const std::function<void(const Value&)>& change) {
    const Value messages = jinja::parse_json(input.messages_json, "messages", heap);
    const auto joined = ContentParts::join(messages, heap);
    compiled->system_messages.adapt(messages, heap);
    compiled->role_turns.adapt(messages, heap);
    compiled->tool_results.adapt(messages, heap);
    compiled->call_turns.adapt(messages, heap);
    compiled->call_ids.adapt(messages, heap);
    compiled->content_parts.restore(messages, joined, heap);
    has_gaps = shapes.adapt(messages, heap);
    change(messages);
    const Value context = variables(shown, messages, heap, typescript);
    return jinja::Evaluator(*compiled->tree, heap, context.entries(), input.now, limits).render();
  };
  const auto render_shaped = [&](const MessageShapes& shapes) {
    if (!input.continue_final_message) return attempt(shapes, [](const Value&) {});
    FinalMessage final_message(input.messages_json);
    std::string rendered = attempt(shapes, [&](const Value& messages) { final_message.mark(messages, heap); });
    if (final_message.cut(rendered)) return rendered;
    rendered = attempt(shapes, [&](const Value& messages) { final_message.mark_stripped(messages, heap); });
    (void)final_message.cut(rendered);
    return rendered;
  };
  std::optional<Error> first;
  try {
    return render_shaped(compiled->shapes);
  } catch (const TemplateError& error) {
    first = to_error(ErrorCode::kInvalidArgument, error);
  }
  const auto render_again = [&](const MessageShapes& shapes) -> std::optional<std::string> {
    try {
      return render_shaped(shapes);
    } catch (const TemplateError&) {
      return std::nullopt;
    }
  };
  // A place in the conversation that the probes had not: other forms of messages without content may be rendered there.
  for (const NoContent form : {NoContent::kEmpty, NoContent::kNull, NoContent::kAbsent}) {
    if (!has_gaps) break;
    if (auto text = render_again(compiled->shapes.with_no_content(form))) return std::move(*text);
  }
  if (input.tools_json.empty()) return *first;
  for (const std::string& tools : other_tool_forms(input.tools_json, heap)) {
    shown.tools_json = tools;
    if (auto text = render_again(compiled->shapes)) return std::move(*text);
  }
  return *first;
}

}  // namespace millrace::text
