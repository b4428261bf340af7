#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/tool_calls/delimiter.h"
#include "text/tool_calls/response_value.h"
#include "text/tool_calls/tool_calls.h"

/// The "response_template" of tokenizer_config.json, by which a model describes its outputs.
namespace millrace::text {

/// The fields of outputs and what begins and ends each. Immutable.
class ResponseTemplate {
 public:
  enum class Target : uint8_t { kReasoning, kContent, kCalls, kOther };

  struct Field {
    std::string name;
    Target target = Target::kOther;
    std::optional<Delimiter> open;  ///< empty for the field of the text outside of all others
    std::optional<Delimiter> close;
    ResponseContent content;
    std::string join;              ///< stands between the texts of several regions
    std::string transform;         ///< JSON, or empty
    bool transforms_each = false;  ///< the transform applies to each item of the content
  };

  /// Reads the member of tokenizer_config.json. Fails with kData for what the description does not allow.
  [[nodiscard]] static Result<std::shared_ptr<const ResponseTemplate>> parse(std::string_view json);

  /// Returns the end of a rendered prompt that belongs to the output.
  [[nodiscard]] std::string prompt_end(std::string_view prompt) const;
  [[nodiscard]] const std::vector<Field>& fields() const { return fields_; }
  /// Returns the field of the text outside of all others, or null.
  [[nodiscard]] const Field* implicit_field() const;
  [[nodiscard]] bool has(Target target) const;

 private:
  std::optional<Delimiter> anchor_;
  std::vector<Field> fields_;
};

/// Splits one output as its ResponseTemplate says. Several texts of one field are joined, also where the description
/// would keep the last one only: a stream has sent the first. A call that cannot be read is content.
class ResponseTemplateParser {
 public:
  struct Out {
    std::string& reasoning;
    std::string& content;
    std::vector<ToolCallPart>& calls;
  };

  /// Begins after `prompt_end`. `types` are those of the tools' parameters, or null.
  ResponseTemplateParser(std::shared_ptr<const ResponseTemplate> description, std::string_view prompt_end,
                         std::shared_ptr<const ParameterTypes> types);

  void push(std::string_view text, Out out);
  /// Ends the open region at the end of the output.
  void finish(Out out);
  [[nodiscard]] bool in_reasoning() const;
  [[nodiscard]] uint32_t finished_calls() const { return finished_calls_; }

 private:
  using Field = ResponseTemplate::Field;
  using Target = ResponseTemplate::Target;

  void parse(Out& out, bool is_end);
  bool step(Out& out, bool is_end);
  bool step_outside(Out& out, bool is_end);
  void open_region(const Field& field, const Delimiter::Match& match);
  /// Ends the open region, which `closing` closes.
  void close_region(std::string_view closing, Out& out);
  /// Adds text to the open region, or to the text outside.
  void append(std::string_view text, Out& out);
  void append_text(const Field& field, std::string_view text, Out& out);
  void end_text(const Field& field);
  /// Returns whether the region's text is a value that has been emitted.
  bool emit_calls(const Field& field, Out& out);
  bool emit_call(std::string_view value, Out& out);

  std::shared_ptr<const ResponseTemplate> description_;
  std::shared_ptr<const ParameterTypes> types_;
  const Field* field_ = nullptr;  // of the open region; null outside
  std::string pending_;           // not assigned to a region yet
  std::string opening_;           // the text that opened the region
  std::string region_;            // the text of a region of calls
  std::string space_;             // white space that ends the text so far
  Captures captures_;
  bool has_text_ = false;            // the region has had text that is no white space
  bool is_outside_open_ = false;     // the text outside has begun
  bool in_prompt_ = false;           // the text is the prompt's
  std::vector<const Field*> begun_;  // fields that have had text
  uint32_t finished_calls_ = 0;
};

}  // namespace millrace::text
