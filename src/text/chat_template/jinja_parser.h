#pragma once

#include <memory>
#include <string_view>

#include "text/chat_template/jinja_ast.h"

namespace millrace::text::jinja {

/// Parses a template with Jinja's grammar, less inheritance, imports and includes. Throws TemplateError with a line.
[[nodiscard]] std::unique_ptr<TemplateTree> parse_template(std::string_view source);

}  // namespace millrace::text::jinja
