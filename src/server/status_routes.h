#pragma once

#include "server/http/http_usage.h"
#include "server/input_processor.h"
#include "server/observe/server_metrics.h"
#include "server/generation_routes.h"
#include "server/pooling_routes.h"
#include "server/ring_routes.h"
#include "server/router.h"

namespace millrace::server {

/// The routes that report on the server: health, version, models, load, metrics, server_info, and the OpenAPI document.
/// Owned by Api; its executor only.
class StatusRoutes {
 public:
  /// What the routes report on; all of it outlives the object.
  struct Sources {
    const ServerOptions& options;
    const Service& service;
    const HttpUsage& usage;
    const InputProcessor& input_processor;
    const GenerationRoutes& generation;
    const PoolingRoutes& pooling;
    const RingRoutes& ring;
    const ServerMetrics& metrics;
    const Router& router;
  };

  explicit StatusRoutes(const Sources& sources);

  void add_to(Router& router);

 private:
  void add_probes_to(Router& router);
  [[nodiscard]] size_t requests_in_flight() const;
  [[nodiscard]] HttpResponse models(const HttpRequest& request) const;
  /// Answers "/v1/models/{id}".
  [[nodiscard]] HttpResponse model(const HttpRequest& request) const;
  [[nodiscard]] HttpResponse health() const;
  [[nodiscard]] HttpResponse load() const;
  [[nodiscard]] HttpResponse server_info() const;
  [[nodiscard]] HttpResponse metrics() const;
  [[nodiscard]] HttpResponse openapi() const;

  const Sources from_;
  const int64_t created_s_;  ///< the models' creation time: that of the server's start
};

}  // namespace millrace::server
