#include "server/generator.h"

#include <boost/asio/cancellation_state.hpp>
#include <boost/asio/this_coro.hpp>

#include "server/generation.h"

namespace millrace::server {

asio::awaitable<void> Generator::serve(GenerationSpec spec, Connection& connection, RequestRecord& record,
                                       const Decorator& decorate) {
  Generation generation(*this, std::move(spec), connection, record, decorate);
  std::exception_ptr failure;
  try {
    co_await generation.run();
  } catch (...) {
    failure = std::current_exception();
  }
  co_await asio::this_coro::reset_cancellation_state(asio::disable_cancellation());
  co_await generation.finish();
  co_await asio::this_coro::reset_cancellation_state(asio::enable_terminal_cancellation());
  if (failure) std::rethrow_exception(failure);
}

size_t Generator::abort(const std::string& id) {
  for (const char* prefix : {"", "cmpl-", "chatcmpl-"}) {
    const auto found = active_.find(prefix + id);
    if (found != active_.end()) return found->second->abort();
  }
  return 0;
}

size_t Generator::abort_all() {
  size_t count = 0;
  for (const auto& [id, generation] : active_) count += generation->abort();
  return count;
}

void Generator::refuse_all() {
  refusing_ = true;
  for (const auto& [id, generation] : active_) generation->wake();
}

}  // namespace millrace::server
