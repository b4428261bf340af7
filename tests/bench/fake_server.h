#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <chrono>
#include <string>
#include <vector>

#include "async/runtime.h"
#include "async/task_group.h"
#include "load/options.h"

namespace millrace::test {

/// How the server answers a completion.
struct FakeBehaviour {
  bool silent = false;       ///< nothing is answered, not even which models there are
  uint32_t chunk_count = 4;  ///< chunks with choices and text
  bool role = false;         ///< before them, at once, a chunk that names the role alone
  bool finish = false;       ///< after them one that names the end alone
  async::Duration before_first{0};
  async::Duration between{0};
  bool usage = true;
  bool done = true;  ///< ends with [DONE]
  unsigned status = 200;
  uint32_t error_after = UINT32_MAX;  ///< an error event takes this chunk's place
  uint32_t cut_after = UINT32_MAX;    ///< the connection closes instead of this chunk
  uint32_t fail_every = 0;            ///< every n-th completion gets a 503
  bool keep_alive = true;             ///< false: the server closes after each reply without having said so
  size_t piece_bytes = 0;             ///< the reply is written in pieces of this size; 0: an event at a time
};

/// An OpenAI streaming server that generates nothing, on the runtime of the test. stop() before it is destroyed.
class FakeServer {
 public:
  FakeServer(async::Runtime& runtime, FakeBehaviour behaviour);

  [[nodiscard]] load::Target target() const;
  [[nodiscard]] asio::awaitable<void> stop();

  std::vector<std::string> bodies;  ///< of the completions, in order of arrival
  std::vector<std::string> paths;
  uint32_t connection_count = 0;
  uint32_t request_count = 0;  ///< of any kind
  uint32_t running = 0;
  uint32_t max_running = 0;
  FakeBehaviour behaviour;

 private:
  [[nodiscard]] asio::awaitable<void> accept();
  [[nodiscard]] asio::awaitable<void> serve(asio::ip::tcp::socket socket);
  [[nodiscard]] asio::awaitable<bool> answer(asio::ip::tcp::socket& socket);
  [[nodiscard]] asio::awaitable<void> write(asio::ip::tcp::socket& socket, std::string bytes);

  async::Runtime& runtime_;
  asio::ip::tcp::acceptor acceptor_;
  async::TaskGroup tasks_;
};

}  // namespace millrace::test
