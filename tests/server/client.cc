#include "server/client.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <stdexcept>

namespace millrace::test {

std::string HttpReply::header(std::string_view name) const {
  size_t at = head.find("\r\n");
  while (at != std::string::npos) {
    const size_t begin = at + 2;
    const size_t end = head.find("\r\n", begin);
    const std::string line = head.substr(begin, end == std::string::npos ? end : end - begin);
    const size_t colon = line.find(": ");
    if (colon == name.size() && strncasecmp(line.data(), name.data(), colon) == 0) return line.substr(colon + 2);
    at = end;
  }
  return {};
}

std::vector<std::string> HttpReply::events() const {
  std::vector<std::string> events;
  size_t at = 0;
  while (at < body.size()) {
    const size_t end = body.find("\n\n", at);
    if (end == std::string::npos) break;
    const std::string event = body.substr(at, end - at);
    // An event may have its type in a line before.
    const size_t data = event.starts_with("event: ") ? event.find("\ndata: ") + 1 : 0;
    if (event.substr(data).starts_with("data: ")) events.push_back(event.substr(data + 6));
    at = end + 2;
  }
  return events;
}

Client::Client(uint16_t port, int receive_buffer_bytes) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  const timeval limit{60, 0};
  setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  if (receive_buffer_bytes > 0) {
    setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer_bytes, sizeof receive_buffer_bytes);
  }
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  // Clients run on several threads at once, where Catch's assertions must not.
  if (connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    throw std::runtime_error(std::string("connect: ") + std::strerror(errno));
  }
}

Client::~Client() {
  close();
}

void Client::close() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

void Client::reset() {
  const linger at_once{1, 0};
  setsockopt(fd_, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  close();
}

void Client::close_sending() {
  shutdown(fd_, SHUT_WR);
}

bool Client::send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(count));
  }
  return true;
}

bool Client::receive() {
  char block[16384];
  ssize_t count = 0;
  do {
    count = recv(fd_, block, sizeof block, 0);
  } while (count < 0 && errno == EINTR);  // a process that is stopped and goes on, where a receive has a time limit
  if (count <= 0) return false;
  buffer_.append(block, static_cast<size_t>(count));
  return true;
}

bool Client::read_until(std::string_view text) {
  while (buffer_.find(text) == std::string::npos) {
    if (!receive()) return false;
  }
  return true;
}

bool Client::at_end() {
  while (receive()) {
  }
  char byte = 0;
  return recv(fd_, &byte, 1, 0) == 0 || errno == ECONNRESET;
}

HttpReply Client::read(bool without_body) {
  HttpReply reply;
  if (!read_until("\r\n\r\n")) return reply;
  const size_t head_end = buffer_.find("\r\n\r\n");
  reply.head = buffer_.substr(0, head_end + 2);
  buffer_.erase(0, head_end + 4);
  reply.status = static_cast<unsigned>(std::stoul(reply.head.substr(9, 3)));
  if (without_body || reply.status == 204 || reply.status == 100) return reply;
  if (reply.header("Transfer-Encoding") == "chunked") {
    for (;;) {
      if (!read_until("\r\n")) break;
      const size_t line_end = buffer_.find("\r\n");
      const size_t size = std::stoul(buffer_.substr(0, line_end), nullptr, 16);
      while (buffer_.size() < line_end + 2 + size + 2) {
        if (!receive()) {
          reply.truncated = true;
          return reply;
        }
      }
      reply.body += buffer_.substr(line_end + 2, size);
      buffer_.erase(0, line_end + 2 + size + 2);
      if (size == 0) return reply;
    }
    reply.truncated = true;
    return reply;
  }
  const std::string length = reply.header("Content-Length");
  if (length.empty()) {
    while (receive()) {
    }
    reply.body = std::exchange(buffer_, {});
    return reply;
  }
  const size_t size = std::stoul(length);
  while (buffer_.size() < size && receive()) {
  }
  reply.truncated = buffer_.size() < size;
  reply.body = buffer_.substr(0, size);
  buffer_.erase(0, std::min(size, buffer_.size()));
  return reply;
}

HttpReply Client::get(std::string_view path, std::string_view more_headers) {
  send(fmt::format("GET {} HTTP/1.1\r\nHost: test\r\n{}\r\n", path, more_headers));
  return read();
}

std::string post_bytes(std::string_view path, std::string_view json, std::string_view more_headers) {
  return fmt::format(
      "POST {} HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\nContent-Length: {}\r\n{}\r\n{}", path,
      json.size(), more_headers, json);
}

HttpReply Client::remove(std::string_view path) {
  send(fmt::format("DELETE {} HTTP/1.1\r\nHost: test\r\n\r\n", path));
  return read();
}

HttpReply Client::post(std::string_view path, std::string_view json, std::string_view more_headers) {
  send(post_bytes(path, json, more_headers));
  return read();
}

ParsedJson::ParsedJson(const std::string& text) {
  INFO(text);
  REQUIRE(parser_.parse(text).get(root_) == simdjson::SUCCESS);
}

simdjson::dom::element ParsedJson::at(std::string_view pointer) const {
  INFO(pointer << " of " << simdjson::minify(root_));
  simdjson::dom::element element;
  REQUIRE(root_.at_pointer(pointer).get(element) == simdjson::SUCCESS);
  return element;
}

bool ParsedJson::has(std::string_view pointer) const {
  return root_.at_pointer(pointer).error() == simdjson::SUCCESS;
}

std::string ParsedJson::string(std::string_view pointer) const {
  std::string_view text;
  REQUIRE(at(pointer).get_string().get(text) == simdjson::SUCCESS);
  return std::string(text);
}

int64_t ParsedJson::integer(std::string_view pointer) const {
  int64_t number = 0;
  REQUIRE(at(pointer).get_int64().get(number) == simdjson::SUCCESS);
  return number;
}

double ParsedJson::number(std::string_view pointer) const {
  double number = 0;
  REQUIRE(at(pointer).get_double().get(number) == simdjson::SUCCESS);
  return number;
}

size_t ParsedJson::size(std::string_view pointer) const {
  simdjson::dom::array array;
  REQUIRE(at(pointer).get_array().get(array) == simdjson::SUCCESS);
  return array.size();
}

}  // namespace millrace::test
