#include "server/request_manager.h"

#include <boost/asio/cancellation_state.hpp>
#include <boost/asio/this_coro.hpp>

#include "server/response_task.h"

namespace millrace::server {

asio::awaitable<void> RequestManager::serve(GenerationSpec spec, Connection& connection, RequestRecord& record,
                                            const Decorator& add_common_headers) {
  ResponseTask task(*this, std::move(spec), connection, record, add_common_headers);
  std::exception_ptr failure;
  try {
    co_await task.run();
  } catch (...) {
    failure = std::current_exception();
  }
  co_await asio::this_coro::reset_cancellation_state(asio::disable_cancellation());
  co_await task.finish();
  co_await asio::this_coro::reset_cancellation_state(asio::enable_terminal_cancellation());
  if (failure) std::rethrow_exception(failure);
}

size_t RequestManager::abort(const std::string& id) {
  for (const char* prefix : {"", "cmpl-", "chatcmpl-"}) {
    const auto found = active_.find(prefix + id);
    if (found != active_.end()) return found->second->abort();
  }
  return 0;
}

size_t RequestManager::abort_all() {
  size_t count = 0;
  for (const auto& [id, task] : active_) count += task->abort();
  return count;
}

void RequestManager::reject_all() {
  refusing_ = true;
  for (const auto& [id, task] : active_) task->wake();
}

}  // namespace millrace::server
