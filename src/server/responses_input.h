#pragma once

#include <memory>
#include <string>

#include "server/generation_routes.h"
#include "server/input_processor.h"
#include "server/responses/event_writer.h"
#include "server/responses/request.h"
#include "server/responses/store.h"

namespace millrace::server {

/// The parts of one request of /v1/responses that are not its generation.
struct ResponsesPlan {
  bool stream = false;
  std::shared_ptr<const responses::WriterInput> writer_input;
};

/// Turns the bodies of /v1/responses into specs. Owned by ResponsesRoutes. Thread-safe.
class ResponsesInput {
 public:
  /// All arguments outlive the object.
  ResponsesInput(const ServerOptions& options, const Service& service, const InputProcessor& input_processor,
                 RandomSource& ids, responses::ResponseStore& store)
      : options_(options), service_(service), input_processor_(input_processor), ids_(ids), store_(store) {}

  /// Prepares a generation, and fills `plan`. A stream whose prompt is too long is not refused: it fails as a response.
  [[nodiscard]] GenerationRoutes::Spec prepare(const HttpRequest& request, responses::Compaction compaction,
                                               ResponsesPlan& plan) const;
  /// Returns the count of tokens that the model would be given.
  [[nodiscard]] openai::ApiResult<size_t> count_tokens(const HttpRequest& request) const;

 private:
  using Request = responses::ResponsesRequest;

  [[nodiscard]] openai::ApiResult<Request> parse(const std::string& body, std::string_view id,
                                                 responses::Compaction compaction) const;
  /// Prepares the request, without its oldest messages if it may drop them.
  [[nodiscard]] GenerationRoutes::Spec prepare_fitting(const Request& request) const;
  /// Returns a spec whose stream opens and fails.
  [[nodiscard]] GenerationSpec make_refusal(const Request& request, openai::ApiError error) const;

  const ServerOptions& options_;
  const Service& service_;
  const InputProcessor& input_processor_;
  RandomSource& ids_;
  responses::ResponseStore& store_;
};

}  // namespace millrace::server
