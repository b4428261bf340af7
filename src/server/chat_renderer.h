#pragma once

#include <memory>
#include <string>

#include "server/openai/error.h"
#include "server/openai/request.h"
#include "server/options.h"
#include "server/service.h"
#include "text/chat_template/chat_template.h"

namespace millrace::server {

/// Renders the conversations of requests with a chat template. Plain code without state. Owned by InputProcessor.
/// Thread-safe.
class ChatRenderer {
 public:
  using TemplatePtr = std::shared_ptr<const text::ChatTemplate>;

  /// Both outlive the object.
  ChatRenderer(const ServerOptions& options, const Service& service) : options_(options), service_(service) {}

  /// Returns the request's own template, or the model's. Error 400: there is none, or requests may not bring one.
  [[nodiscard]] openai::ApiResult<TemplatePtr> choose_template(const openai::Conversation& conversation) const;
  /// Returns the prompt of a chat, without the beginning of the output that tool_choice may add. Error 400: the
  /// template fails, or does not show what the request has.
  [[nodiscard]] openai::ApiResult<std::string> render(const text::ChatTemplate& chat_template,
                                                      const openai::Conversation& conversation) const;

 private:
  const ServerOptions& options_;
  const Service& service_;
};

}  // namespace millrace::server
