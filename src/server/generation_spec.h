#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sched/plan/request.h"
#include "server/openai/choice_delta.h"
#include "server/openai/error.h"
#include "server/openai/response.h"

namespace millrace::server {

/// A parsed request, tokenised, checked against the model and filled with defaults: all that a ResponseTask needs.
struct GenerationSpec {
  openai::ResponseInfo info;
  ChoiceOptions options;
  std::vector<TokenizedPrompt> prompts;
  std::vector<sched::GenerateRequest> requests;  ///< index prompt * n + i
  uint32_t n = 1;
  bool stream = false;
  openai::WriterFactory make_writer;
  bool fails_in_stream = false;             ///< a failure before the first token is an event too, and no status
  std::optional<openai::ApiError> refusal;  ///< why the response fails at once; `requests` is empty then
  bool has_own_id = false;  ///< the body's request_id; a header's may come several times, as a proxy repeats it
  /// Sets the response's id, and the ids of its engine requests.
  void set_id(std::string id);
  [[nodiscard]] const TokenizedPrompt& prompt_of(size_t choice) const { return prompts[choice / n]; }
};

}  // namespace millrace::server
