#pragma once

#include "server/generation_routes.h"
#include "server/input_processor.h"
#include "server/router.h"

namespace millrace::server {

/// The routes of Anthropic's Messages API: a message, and the count of a prompt's tokens. Owned by Api; its executor,
/// and for large bodies the worker's thread.
class MessageRoutes {
 public:
  /// Both outlive the object.
  MessageRoutes(const InputProcessor& input_processor, GenerationRoutes& generation)
      : input_processor_(input_processor), generation_(generation) {}

  void add_to(Router& router);

 private:
  [[nodiscard]] GenerationRoutes::Spec prepare(const HttpRequest& request) const;
  [[nodiscard]] HttpResponse count_tokens(const HttpRequest& request) const;

  const InputProcessor& input_processor_;
  GenerationRoutes& generation_;
};

}  // namespace millrace::server
