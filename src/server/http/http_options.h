#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

namespace millrace::server {

/// How the HTTP server listens, and the bound of everything that a connection could make grow.
struct HttpOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 30000;                   ///< 0: the operating system chooses
  size_t max_connections = 4096;           ///< beyond: 503 and close
  size_t max_body_bytes = 16u << 20;       ///< of one request; beyond: 413
  size_t max_bodies_bytes = 512u << 20;    ///< of all connections together, see BodyBudget; beyond: 503
  uint32_t max_header_bytes = 16u << 10;   ///< beyond: 431
  size_t max_pipelined_bytes = 64u << 10;  ///< read ahead while a request is served

  std::chrono::milliseconds header_timeout{10'000};  ///< from the first byte to the end of the header
  std::chrono::milliseconds body_timeout{60'000};    ///< from the end of the header to the end of the body
  std::chrono::milliseconds idle_timeout{75'000};    ///< between requests
  std::chrono::milliseconds write_timeout{30'000};   ///< without any progress of a write
  int send_buffer_bytes = 0;                         ///< SO_SNDBUF; 0: the system's choice
};

}  // namespace millrace::server
