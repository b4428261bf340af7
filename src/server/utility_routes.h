#pragma once

#include "server/input_processor.h"
#include "server/router.h"

namespace millrace::server {

/// The routes that show a client what the server makes of its input, without generating: tokenize, detokenize,
/// apply-template. Owned by Api. The handlers are plain code, and run on the worker thread when the body is large.
class UtilityRoutes {
 public:
  /// All arguments outlive the object.
  UtilityRoutes(const ServerOptions& options, const Service& service, const InputProcessor& input_processor)
      : options_(options), service_(service), input_processor_(input_processor) {}

  void add_to(Router& router);

 private:
  [[nodiscard]] HttpResponse tokenize(const HttpRequest& request) const;
  [[nodiscard]] HttpResponse detokenize(const HttpRequest& request) const;
  [[nodiscard]] HttpResponse apply_template(const HttpRequest& request) const;

  const ServerOptions& options_;
  const Service& service_;
  const InputProcessor& input_processor_;
};

}  // namespace millrace::server
