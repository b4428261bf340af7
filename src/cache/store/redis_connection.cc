#include "cache/store/redis_connection.h"

#include <algorithm>
#include <charconv>
#include <utility>

namespace millrace::cache {
namespace {

constexpr size_t kBufferBytes = 64 * 1024;

int64_t parse_integer(std::string_view text) {
  int64_t value = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failure != std::errc() || end != text.data() + text.size()) {
    throw_error(ErrorCode::kData, fmt::format("found '{}', wanted a number: not a Redis server", text.substr(0, 40)));
  }
  return value;
}

}  // namespace

std::string redis_name(const RedisStoreOptions& options) {
  if (options.host.starts_with('/')) return fmt::format("redis://{}/{}", options.host, options.db);
  const bool is_v6 = options.host.find(':') != std::string::npos;
  return fmt::format("redis{}://{}{}{}:{}/{}", options.tls.enabled ? "s" : "", is_v6 ? "[" : "", options.host,
                     is_v6 ? "]" : "", options.port, options.db);
}

RedisConnection::RedisConnection(const RedisStoreOptions& options, async::NameLookup& host)
    : socket_(options, host), buffer_(kBufferBytes) {
  handshake(options);
}

void RedisConnection::handshake(const RedisStoreOptions& options) {
  struct Step {
    std::vector<std::string_view> words;
    std::string what;
  };
  const std::string db = std::to_string(options.db);
  std::vector<Step> steps;
  if (!options.password.empty() && options.user.empty()) steps.push_back({{"AUTH", options.password}, "the password"});
  if (!options.user.empty()) {
    steps.push_back({{"AUTH", options.user, options.password}, fmt::format("user '{}'", options.user)});
  }
  if (options.db != 0) steps.push_back({{"SELECT", db}, fmt::format("database {}", db)});
  steps.push_back({{"PING"}, "this client"});
  for (const Step& step : steps) {
    const auto& words = step.words;
    if (words.size() == 1) queue({words[0]});
    if (words.size() == 2) queue({words[0], words[1]});
    if (words.size() == 3) queue({words[0], words[1], words[2]});
    send();
    const RedisReply reply = receive();
    if (reply.kind == RedisReply::Kind::kStatus) continue;
    const bool busy =
        reply.text.starts_with("LOADING") || reply.text.starts_with("BUSY") || reply.text.starts_with("MASTERDOWN");
    throw_error(busy ? ErrorCode::kUnavailable : ErrorCode::kInvalidArgument,
                fmt::format("the server refuses {}: {}", step.what, reply.text));
  }
}

void RedisConnection::queue(std::initializer_list<std::string_view> words) {
  std::string& text = texts_.emplace_back(fmt::format("*{}\r\n", words.size()));
  for (const std::string_view word : words) text += fmt::format("${}\r\n{}\r\n", word.size(), word);
  pieces_.push_back({text.data(), text.size()});
}

void RedisConnection::queue_value(std::initializer_list<std::string_view> words,
                                  std::array<std::span<const std::byte>, 2> value) {
  const size_t bytes = value[0].size() + value[1].size();
  std::string& before = texts_.emplace_back(fmt::format("*{}\r\n", words.size() + 1));
  std::string& after = texts_.emplace_back("\r\n");
  size_t index = 0;
  for (const std::string_view word : words) {
    (index++ < 2 ? before : after) += fmt::format("${}\r\n{}\r\n", word.size(), word);
  }
  before += fmt::format("${}\r\n", bytes);
  pieces_.push_back({before.data(), before.size()});
  for (const auto part : value) pieces_.push_back({const_cast<std::byte*>(part.data()), part.size()});
  pieces_.push_back({after.data(), after.size()});
}

void RedisConnection::send() {
  socket_.send(pieces_);
  pieces_.clear();
  texts_.clear();
}

void RedisConnection::take(std::span<std::byte> into) {
  const size_t here = std::min(into.size(), buffered());
  std::copy_n(buffer_.begin() + static_cast<std::ptrdiff_t>(begin_), here, into.begin());
  begin_ += here;
  into = into.subspan(here);
  while (!into.empty()) into = into.subspan(socket_.receive_some(into));
}

void RedisConnection::fill() {
  if (begin_ > 0) {
    std::copy(buffer_.begin() + static_cast<std::ptrdiff_t>(begin_),
              buffer_.begin() + static_cast<std::ptrdiff_t>(end_), buffer_.begin());
    end_ -= std::exchange(begin_, 0);
  }
  if (end_ == buffer_.size()) throw_error(ErrorCode::kData, "found a line without end: not a Redis server");
  end_ += socket_.receive_some(std::span(buffer_).subspan(end_));
}

std::string RedisConnection::read_line() {
  for (;;) {
    const std::string_view text(reinterpret_cast<const char*>(buffer_.data()) + begin_, buffered());
    if (const size_t end = text.find("\r\n"); end != std::string_view::npos) {
      std::string line(text.substr(0, end));
      begin_ += end + 2;
      return line;
    }
    fill();
  }
}

void RedisConnection::drop(uint64_t bytes) {
  while (bytes > 0) {
    if (buffered() == 0) fill();
    const size_t here = static_cast<size_t>(std::min<uint64_t>(bytes, buffered()));
    begin_ += here;
    bytes -= here;
  }
}

void RedisConnection::read_bulk(uint64_t bytes, std::array<std::span<std::byte>, 2> into) {
  for (const std::span<std::byte> part : into) {
    const auto here = static_cast<size_t>(std::min<uint64_t>(bytes, part.size()));
    take(part.first(here));
    bytes -= here;
  }
  drop(bytes);
  std::array<std::byte, 2> end{};
  take(end);
  if (end[0] != std::byte{'\r'} || end[1] != std::byte{'\n'}) {
    throw_error(ErrorCode::kData, "found a string without its end: not a Redis server");
  }
}

RedisReply RedisConnection::receive(std::array<std::span<std::byte>, 2> into) {
  const std::string line = read_line();
  const std::string_view rest = line.empty() ? std::string_view() : std::string_view(line).substr(1);
  RedisReply reply;
  switch (line.empty() ? '\0' : line[0]) {
    case '+': reply = {RedisReply::Kind::kStatus, std::string(rest)}; break;
    case '-': reply = {RedisReply::Kind::kError, std::string(rest)}; break;
    case ':': reply = {RedisReply::Kind::kInteger, {}, parse_integer(rest)}; break;
    case '$': {
      const int64_t bytes = parse_integer(rest);
      if (bytes < 0) break;
      reply = {RedisReply::Kind::kBulk, {}, 0, static_cast<uint64_t>(bytes)};
      read_bulk(reply.bulk_bytes, into);
      break;
    }
    default:
      throw_error(ErrorCode::kData, fmt::format("found '{}', wanted a reply: not a Redis server", line.substr(0, 40)));
  }
  return reply;
}

}  // namespace millrace::cache
