#pragma once

#include <ctime>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/tool_calls/reasoning_formats.h"
#include "text/tool_calls/tool_formats.h"

namespace millrace::text {

class ResponseTemplate;

namespace jinja {
class Heap;
class Value;
}  // namespace jinja

/// What a chat template is rendered with. The views are read during the call only.
struct ChatInput {
  std::string_view messages_json;        ///< an array of messages
  std::string_view tools_json;           ///< an array, or empty for none
  std::string_view documents_json;       ///< an array, or empty for none
  std::string_view kwargs_json;          ///< an object of further variables, or empty; they override the others
  std::string_view default_kwargs_json;  ///< the same; all others override them
  bool add_generation_prompt = false;
  /// The last message is the beginning of the output: the chat ends where the message's content ends, which is found by
  /// a mark after it. Space at its end is dropped where the template drops it.
  bool continue_final_message = false;
  /// "default", or another of a model's named templates; empty: "tool_use" if there are tools and it exists.
  std::string_view template_name;
  /// A variable of templates; empty: not defined. A template that prints any word gets "low" for "none".
  std::string_view reasoning_effort;
  std::optional<bool> enable_thinking;  ///< likewise
  std::tm now{};                        ///< what strftime_now formats
};

/// A model's chat template(s), compiled once. `render` is const and thread-safe; it works within fixed limits of
/// steps, memory and output, so no template or input can hang or exhaust the server.
class ChatTemplate {
 public:
  /// Special tokens by their names in tokenizer_config.json: "bos_token", "eos_token", ...
  using SpecialTokens = std::map<std::string, std::string, std::less<>>;

  /// Reads the "chat_template" of tokenizer_config.json, chat_template.jinja, and additional_chat_templates/NAME.jinja;
  /// of two with one name a file wins. Reads that of chat_template.json if there are no others. Errors: kNotFound if
  /// there is none, kData if one does not parse.
  /// `tokens` are the special tokens of the tokenizer, which hold where the config names no others.
  static Result<std::shared_ptr<const ChatTemplate>> load(const std::filesystem::path& model_dir,
                                                          const SpecialTokens& tokens = {});
  /// `source` may be empty if the config has a template; `config_json` may be empty if `source` is not.
  static Result<std::shared_ptr<const ChatTemplate>> from_source(std::string_view source,
                                                                 std::string_view config_json = {});
  /// Makes a template of its own with a model's special tokens. Errors: kData.
  static Result<std::shared_ptr<const ChatTemplate>> with_tokens(std::string_view source, SpecialTokens tokens);
  /// Returns the special tokens that a tokenizer_config.json names, none if it is empty. Errors: kData.
  static Result<SpecialTokens> tokens_of(std::string_view config_json);
  ~ChatTemplate();

  /// Messages without content, neighbouring messages and the arguments of earlier calls are given in the shape that the
  /// template renders.
  /// Errors: kInvalidArgument, with the template's line where there is one: input that is not JSON, a template that
  /// raises an exception (roles that do not alternate), a limit.
  [[nodiscard]] Result<std::string> render(const ChatInput& input) const;

  [[nodiscard]] std::vector<std::string> template_names() const;
  [[nodiscard]] bool has_template(std::string_view name) const { return templates_.contains(name); }
  /// Returns whether the template that `input` selects names documents.
  [[nodiscard]] bool supports_documents(const ChatInput& input) const;
  /// Returns the syntax in which it asks for tool calls, if that is a known one.
  [[nodiscard]] std::optional<ToolFormat> tool_format() const { return tool_format_; }
  /// Returns whether it shows the model the tools that there are.
  [[nodiscard]] bool supports_tools() const { return supports_tools_; }
  /// Returns how the model's outputs begin with reasoning, if that is in a known syntax.
  [[nodiscard]] std::optional<ReasoningFormat> reasoning_format() const { return reasoning_format_; }
  /// Returns the model's own description of its outputs; null if its config has none that is valid.
  [[nodiscard]] const std::shared_ptr<const ResponseTemplate>& response_template() const { return response_template_; }

 private:
  /// A template with what is known of it.
  struct Compiled;

  using NamedSources = std::map<std::string, std::string>;

  ChatTemplate();
  static Result<std::shared_ptr<const ChatTemplate>> from_sources(const NamedSources& sources,
                                                                  std::string_view config_json,
                                                                  const SpecialTokens& tokens);
  void add_template(std::string name, std::string_view source);
  void add_from_config(std::string_view config_json);
  /// Finds out the message shapes of each template. Called once all templates and special tokens are there.
  void probe();
  [[nodiscard]] const Compiled* find(const ChatInput& input) const;
  [[nodiscard]] jinja::Value variables(const ChatInput& input, const jinja::Value& messages, jinja::Heap& heap,
                                       const std::optional<std::string>& typescript = {}) const;

  std::map<std::string, std::unique_ptr<Compiled>, std::less<>> templates_;
  SpecialTokens special_tokens_;
  std::optional<ToolFormat> tool_format_;
  bool supports_tools_ = false;
  std::optional<ReasoningFormat> reasoning_format_;
  std::shared_ptr<const ResponseTemplate> response_template_;
};

}  // namespace millrace::text
