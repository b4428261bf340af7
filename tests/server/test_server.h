#pragma once

#include <memory>
#include <string>

#include "server/client.h"
#include "server/fake_engine.h"
#include "server/server.h"

namespace millrace::test {

/// Ids 0 to 255 are the bytes, 256 is <bos>, 257 is <eos>, 258 the special tag if there is one; no merges. With
/// `adds_bos`, an encoded text begins with <bos>.
[[nodiscard]] std::shared_ptr<const text::Tokenizer> byte_tokenizer(std::string_view special_tag = {},
                                                                    bool adds_bos = false);

/// Returns a service over `engine` with the byte tokenizer and a small chat template.
[[nodiscard]] server::Service test_service(sched::Engine& engine);

/// A server over a fake engine, on a port of the system's choice; stopped without draining at the end.
class TestServer {
 public:
  explicit TestServer(server::ServerOptions options = {},
                      std::shared_ptr<const server::PoolingModel> pooling = nullptr);
  ~TestServer() { front->stop(std::chrono::milliseconds(0)); }
  [[nodiscard]] HttpReply get(std::string_view path, std::string_view more_headers = {}) const {
    return Client(port).get(path, more_headers);
  }
  [[nodiscard]] HttpReply post(std::string_view path, std::string_view json, std::string_view more_headers = {}) const {
    return Client(port).post(path, json, more_headers);
  }
  [[nodiscard]] HttpReply remove(std::string_view path) const { return Client(port).remove(path); }
  [[nodiscard]] HttpReply complete(std::string_view json) const { return post("/v1/completions", json); }
  [[nodiscard]] HttpReply chat(std::string_view json) const { return post("/v1/chat/completions", json); }

  FakeEngine engine;
  std::unique_ptr<server::Server> front;
  uint16_t port = 0;
};

}  // namespace millrace::test
