#pragma once

#include <string>
#include <vector>

#include "sched/plan/request.h"
#include "server/openai/pooling_response.h"

namespace millrace::server {

/// A parsed request for vectors or scores, tokenized and checked against the model: all that a PoolingTask needs.
struct PoolingSpec {
  openai::PoolingInfo info;
  std::vector<sched::GenerateRequest> requests;
  bool has_own_id = false;  ///< the body's request_id
  /// Sets the response's id, and the ids of its engine requests.
  void set_id(std::string id);
};

}  // namespace millrace::server
