#include "bench/fake_server.h"

#include <fmt/core.h>

#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>

namespace millrace::test {

using asio::ip::tcp;

namespace {

constexpr auto kOutcome = asio::as_tuple(asio::use_awaitable);

std::string http_chunk(const std::string& event) {
  return fmt::format("{:x}\r\n{}\r\n", event.size(), event);
}
std::string data_event(const std::string& json) {
  return http_chunk("data: " + json + "\n\n");
}

std::string plain_reply(unsigned status, const std::string& body) {
  return fmt::format("HTTP/1.1 {} X\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{}", status,
                     body.size(), body);
}

}  // namespace

FakeServer::FakeServer(async::Runtime& runtime, FakeBehaviour given)
    : behaviour(given),
      runtime_(runtime),
      acceptor_(runtime.executor(), tcp::endpoint(asio::ip::address_v4::loopback(), 0)),
      tasks_(runtime) {
  tasks_.spawn("accept", accept());
}

load::Target FakeServer::target() const {
  return {.host = "127.0.0.1", .port = std::to_string(acceptor_.local_endpoint().port()), .prefix = ""};
}

asio::awaitable<void> FakeServer::stop() {
  tasks_.close();
  tasks_.cancel();
  co_await tasks_.join();
}

asio::awaitable<void> FakeServer::accept() {
  for (;;) {
    auto [error, socket] = co_await acceptor_.async_accept(kOutcome);
    if (error) co_return;
    ++connection_count;
    tasks_.spawn("serve", serve(std::move(socket)));
  }
}

asio::awaitable<void> FakeServer::serve(tcp::socket socket) {
  std::string buffered;
  for (;;) {
    size_t head_end = buffered.find("\r\n\r\n");
    while (head_end == std::string::npos) {
      char piece[4096];
      const auto [error, count] = co_await socket.async_read_some(asio::buffer(piece), kOutcome);
      if (error) co_return;
      buffered.append(piece, count);
      head_end = buffered.find("\r\n\r\n");
    }
    const std::string head = buffered.substr(0, head_end);
    buffered.erase(0, head_end + 4);
    const size_t length_at = head.find("Content-Length: ");
    const size_t length = length_at == std::string::npos ? 0 : std::stoul(head.substr(length_at + 16));
    while (buffered.size() < length) {
      char piece[4096];
      const auto [error, count] = co_await socket.async_read_some(asio::buffer(piece), kOutcome);
      if (error) co_return;
      buffered.append(piece, count);
    }
    ++request_count;
    if (behaviour.silent) co_await async::sleep_for(runtime_, std::chrono::hours(1));
    const std::string path = head.substr(head.find(' ') + 1, head.find(" HTTP") - head.find(' ') - 1);
    if (path == "/v1/models") {
      co_await write(socket, plain_reply(200, R"({"object":"list","data":[{"id":"fake","object":"model"}]})"));
      continue;
    }
    paths.push_back(path);
    bodies.push_back(buffered.substr(0, length));
    buffered.erase(0, length);
    ++running;
    max_running = std::max(max_running, running);
    const bool whole = co_await answer(socket);
    --running;
    if (!whole || !behaviour.keep_alive) co_return;
  }
}

asio::awaitable<bool> FakeServer::answer(tcp::socket& socket) {
  const FakeBehaviour how = behaviour;
  const bool unlucky = how.fail_every > 0 && bodies.size() % how.fail_every == 0;
  if (how.status != 200 || unlucky) {
    co_await write(socket, plain_reply(unlucky ? 503 : how.status, R"({"error":{"message":"no room","code":1}})"));
    co_return true;
  }
  std::string out = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
  out += http_chunk(": hello\n\n");
  if (how.role)
    out += data_event(R"({"choices":[{"index":0,"delta":{"role":"assistant","content":""}}],"usage":null})");
  if (how.role && how.piece_bytes == 0) co_await write(socket, std::exchange(out, ""));
  for (uint32_t i = 0; i < how.chunk_count; ++i) {
    const async::Duration pause = i == 0 ? how.before_first : how.between;
    if (pause > async::Duration{0}) co_await async::sleep_for(runtime_, pause);
    if (i == how.cut_after) co_return false;
    const bool fails = i == how.error_after;
    out += data_event(fails ? R"({"error":{"message":"stage 2 is gone","code":503}})"
                            : R"({"id":"cmpl-1","choices":[{"index":0,"text":"a\n"}],"usage":null})");
    if (how.piece_bytes == 0) co_await write(socket, std::exchange(out, ""));
    if (fails) break;
  }
  if (how.finish) out += data_event(R"({"choices":[{"text":"","finish_reason":"length"}],"usage":null})");
  if (how.usage) out += data_event(R"({"id":"cmpl-1","choices":[],"usage":{"prompt_tokens":7,"completion_tokens":9}})");
  if (how.done) out += data_event("[DONE]");
  out += "0\r\n\r\n";
  for (size_t at = 0; at < out.size(); at += std::max<size_t>(how.piece_bytes, 1)) {
    const size_t size = how.piece_bytes == 0 ? out.size() : how.piece_bytes;
    co_await write(socket, out.substr(at, size));
    if (how.piece_bytes == 0) break;
    co_await async::sleep_for(runtime_, std::chrono::microseconds(20));
  }
  co_return true;
}

asio::awaitable<void> FakeServer::write(tcp::socket& socket, std::string bytes) {
  const auto [error, written] = co_await asio::async_write(socket, asio::buffer(bytes), kOutcome);
  static_cast<void>(error);  // a client that has gone shows at the next read
  static_cast<void>(written);
}

}  // namespace millrace::test
