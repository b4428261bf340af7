#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/openai/field.h"

namespace millrace::server::messages {

/// The tools of one request. Those that Anthropic's servers would run are left out. A tool with defer_loading is not
/// shown until a result names it by a tool_reference, which then holds its definition: so the prompt's start stays.
/// Lives while the request is parsed.
class ToolList {
 public:
  /// Reads "tools". Call once.
  [[nodiscard]] openai::FieldError read(std::string_view name, openai::Json value);
  /// Stores what may be called, and what the template shows.
  void store(openai::Conversation& conversation) const;
  /// Returns what a tool_reference to `name` shows the model: the definition of a tool that was deferred, else the
  /// name.
  [[nodiscard]] std::string_view referenced_text(std::string_view name) const;

 private:
  struct Entry {
    openai::Tool tool;
    std::string json;  ///< as templates take it
    bool is_deferred = false;
  };
  [[nodiscard]] openai::FieldError read_tool(const std::string& path, openai::Json value);

  std::vector<Entry> entries_;
  bool searches_on_server_ = false;
};

/// Reads "tool_choice", with disable_parallel_tool_use.
[[nodiscard]] openai::FieldError read_tool_choice(std::string_view name, openai::Json value,
                                                  openai::ChatRequest& request);

}  // namespace millrace::server::messages
