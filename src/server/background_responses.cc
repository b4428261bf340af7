#include "server/background_responses.h"

#include <utility>

#include "base/log.h"
#include "server/generation_spec.h"
#include "server/response_sink.h"

namespace millrace::server {
namespace {

/// Takes a response that no client waits for: its writer keeps the events. Wakes the followers.
class BackgroundSink final : public ResponseSink {
 public:
  BackgroundSink(async::Runtime& runtime, BackgroundResponse& response) : response_(response) {
    record_.begin = runtime.now();
  }

  [[nodiscard]] RequestRecord& record() override { return record_; }
  [[nodiscard]] bool is_gone() const override { return false; }
  [[nodiscard]] asio::awaitable<void> watch(std::function<void()>, std::function<void()>) override { co_return; }
  [[nodiscard]] asio::awaitable<bool> write_events(std::string& events) override {
    events.clear();
    response_.changed.notify_all();
    co_return true;
  }
  [[nodiscard]] asio::awaitable<void> end_events() override { co_return; }
  [[nodiscard]] asio::awaitable<void> send(HttpResponse) override { co_return; }
  [[nodiscard]] asio::awaitable<void> send_error(openai::ApiError) override { co_return; }
  void close_after_response() override {}

 private:
  BackgroundResponse& response_;
  RequestRecord record_;
};

}  // namespace

BackgroundResponses::Pointer BackgroundResponses::start(GenerationSpec spec,
                                                        std::shared_ptr<const responses::WriterInput> input) {
  responses::EventWriter(spec.info, spec.options, input).publish_queued();
  auto response = std::make_shared<BackgroundResponse>(runtime_, spec.info.id, std::move(input));
  responses_[response->id] = response;
  tasks_.spawn("background response", generate(std::move(spec), response));
  return response;
}

BackgroundResponses::Pointer BackgroundResponses::find(const std::string& id) const {
  const auto found = responses_.find(id);
  return found == responses_.end() ? nullptr : found->second;
}

asio::awaitable<void> BackgroundResponses::generate(GenerationSpec spec, Pointer response) {
  std::exception_ptr failure;
  try {
    BackgroundSink sink(runtime_, *response);
    co_await generation_.serve(std::move(spec), sink);
  } catch (...) {
    failure = std::current_exception();
  }
  response->ended = true;
  response->changed.notify_all();
  responses_.erase(response->id);
  if (failure) std::rethrow_exception(failure);
}

asio::awaitable<void> BackgroundResponses::wait_for_end(Pointer response) {
  while (!response->ended) co_await response->changed.wait();
}

asio::awaitable<void> BackgroundResponses::finish(async::TimePoint deadline) {
  tasks_.close();
  bool ended = co_await tasks_.join_until(deadline);
  while (!ended) {
    tasks_.cancel();
    ended = co_await tasks_.join_until(runtime_.now() + std::chrono::milliseconds(100));
  }
}

}  // namespace millrace::server
