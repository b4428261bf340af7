#include "server/exchange.h"

#include <iterator>

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

}  // namespace millrace::server
