#pragma once

#include "server/openai/field.h"

/// Reads output constraints: OpenAI's response_format, and the fields of vLLM, SGLang and llama.cpp for the same
/// purpose.
namespace millrace::server::openai {

[[nodiscard]] FieldError read_response_format(std::string_view name, Json value, const RequestLimits&,
                                              CommonRequest& request);
[[nodiscard]] FieldError read_structured_outputs(std::string_view name, Json value, const RequestLimits&,
                                                 CommonRequest& request);
/// Reads a JSON schema, given as an object or as its text.
[[nodiscard]] FieldError read_guided_json(std::string_view name, Json value, const RequestLimits&,
                                          CommonRequest& request);
[[nodiscard]] FieldError read_guided_regex(std::string_view name, Json value, const RequestLimits&,
                                           CommonRequest& request);
[[nodiscard]] FieldError read_guided_grammar(std::string_view name, Json value, const RequestLimits&,
                                             CommonRequest& request);
[[nodiscard]] FieldError read_guided_choice(std::string_view name, Json value, const RequestLimits&,
                                            CommonRequest& request);
void describe_response_format(SchemaWriter& schema);
void describe_structured_outputs(SchemaWriter& schema);
void describe_guided_json(SchemaWriter& schema);
void describe_guided_text(SchemaWriter& schema);
void describe_guided_choice(SchemaWriter& schema);
/// Returns whether a body may hold one of these fields, or tools: compiling its grammar may take long.
[[nodiscard]] bool may_constrain_output(std::string_view body);

}  // namespace millrace::server::openai
