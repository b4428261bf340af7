#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "server/openai/response_writer.h"

namespace millrace::server::messages {

/// Writes an output as Anthropic's message, whole or as events. One block is open at a time: thinking, text, or a call
/// of a tool.
class MessageWriter final : public openai::ResponseWriter {
 public:
  /// `max_tokens` is what the request asked for, also where the context holds less.
  MessageWriter(const openai::ResponseInfo& info, uint32_t max_tokens) : info_(info), max_tokens_(max_tokens) {}

  void append_start(std::string& out, const openai::Usage& usage) override;
  void append_delta(std::string& out, const openai::ChoiceView& choice, const openai::Usage& usage) override;
  void append_keep_alive(std::string& out) override;
  void append_end(std::string& out, const openai::Usage& usage) override;
  void append_failure(std::string& out, const openai::ApiError& error) override;
  void append_response(std::string& out, std::span<const openai::ChoiceView> choices,
                       const openai::Usage& usage) override;

 private:
  enum class BlockKind : uint8_t { kThinking, kText, kToolUse };

  /// Opens a block of this kind unless one is open; `call` is the one that it holds.
  void open_block(std::string& out, BlockKind kind, const ToolCallDelta* call = nullptr);
  void close_block(std::string& out);
  void append_piece(std::string& out, std::string_view type, std::string_view member, std::string_view text) const;
  void append_call(std::string& out, const ToolCallDelta& call);

  const openai::ResponseInfo& info_;
  uint32_t max_tokens_;
  std::optional<BlockKind> open_;
  uint32_t index_ = 0;          ///< of the block that is open, or comes next
  uint32_t call_index_ = 0;     ///< of the open call
  bool call_is_empty_ = false;  ///< the open call has no arguments yet
  ChoiceDelta ending_;          ///< the finish of the choice, without its content
};

}  // namespace millrace::server::messages
