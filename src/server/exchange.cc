#include "server/exchange.h"

#include <iterator>
#include <utility>

namespace millrace::server {

asio::awaitable<void> Exchange::send(HttpResponse response) {
  record.status = response.status;
  response.headers.insert(response.headers.end(), common_headers.begin(), common_headers.end());
  // The connection knows when the client is gone, and carries no further request then.
  (void)co_await connection.send(response);
}

asio::awaitable<bool> Exchange::begin_events() {
  HttpResponse head;
  head.content_type = "text/event-stream";
  head.headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}};
  head.headers.insert(head.headers.end(), common_headers.begin(), common_headers.end());
  const bool opened = co_await connection.begin_stream(head);
  co_return opened;
}

asio::awaitable<void> ExchangeSink::watch(std::function<void()> on_gone, std::function<void()> on_half_closed) {
  return exchange_.connection.watch(std::move(on_gone), std::move(on_half_closed));
}

asio::awaitable<bool> ExchangeSink::write_events(std::string& events) {
  if (!std::exchange(is_open_, true)) {
    const bool opened = co_await exchange_.begin_events();
    if (!opened) co_return false;
  }
  const bool sent = co_await exchange_.connection.write_stream(events);
  co_return sent;
}

asio::awaitable<void> ExchangeSink::end_events() {
  (void)co_await exchange_.connection.end_stream();
}

asio::awaitable<void> ExchangeSink::send(HttpResponse response) {
  return exchange_.send(std::move(response));
}

asio::awaitable<void> ExchangeSink::send_error(openai::ApiError error) {
  return exchange_.send(exchange_.make_error(error));
}

}  // namespace millrace::server
