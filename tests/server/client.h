#pragma once

#include <cstdint>
#include <optional>
#include <simdjson.h>
#include <string>
#include <string_view>
#include <vector>

namespace millrace::test {

struct HttpReply {
  unsigned status = 0;
  std::string head;  ///< status line and header lines
  std::string body;
  bool truncated = false;  ///< the connection ended inside the body
  [[nodiscard]] std::string header(std::string_view name) const;
  /// Returns the payloads of the "data: " lines.
  [[nodiscard]] std::vector<std::string> events() const;
};

/// A blocking HTTP/1.1 client that sends any bytes, well-formed or not. Reads fail after a minute.
class Client {
 public:
  explicit Client(uint16_t port, int receive_buffer_bytes = 0);
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  /// Returns false when the server has closed the connection.
  bool send(std::string_view bytes);
  /// Reads one response; its status is 0 when the connection ends before it.
  HttpReply read(bool without_body = false);
  /// Reads until the bytes received so far contain `text`; returns false at the end of the connection.
  bool read_until(std::string_view text);
  /// Waits for the end of the connection; returns whether the server closed it.
  bool at_end();
  void close_sending();
  void close();
  /// Ends the connection by a reset.
  void reset();

  HttpReply get(std::string_view path, std::string_view more_headers = {});
  HttpReply post(std::string_view path, std::string_view json, std::string_view more_headers = {});
  HttpReply remove(std::string_view path);

 private:
  bool receive();

  int fd_;
  std::string buffer_;
};

[[nodiscard]] std::string post_bytes(std::string_view path, std::string_view json, std::string_view more_headers = {});

/// A JSON text kept together with its parser; construction fails the test when it is not valid JSON.
class ParsedJson {
 public:
  explicit ParsedJson(const std::string& text);
  [[nodiscard]] simdjson::dom::element at(std::string_view pointer) const;
  [[nodiscard]] std::string string(std::string_view pointer) const;
  [[nodiscard]] int64_t integer(std::string_view pointer) const;
  [[nodiscard]] double number(std::string_view pointer) const;
  [[nodiscard]] bool is_null(std::string_view pointer) const { return at(pointer).is_null(); }
  [[nodiscard]] bool has(std::string_view pointer) const;
  [[nodiscard]] size_t size(std::string_view pointer) const;

 private:
  simdjson::dom::parser parser_;
  simdjson::dom::element root_;
};

}  // namespace millrace::test
