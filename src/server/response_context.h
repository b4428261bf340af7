#pragma once

#include <chrono>

namespace millrace::async {
class Runtime;
}

namespace millrace::sched {
class Engine;
}

namespace millrace::server {

class ServerMetrics;
class Worker;

/// What the tasks of all requests to the engine share.
struct ResponseContext {
  async::Runtime& runtime;
  sched::Engine& engine;
  ServerMetrics& metrics;
  Worker& worker;
  std::chrono::milliseconds comment_interval;  ///< of keep-alive comments on an idle stream
  bool is_stopping = false;                    ///< every request ends with an error: the server stops
};

}  // namespace millrace::server
