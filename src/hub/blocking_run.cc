#include "hub/blocking_run.h"

#include <boost/asio/cancellation_state.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/this_coro.hpp>
#include <future>
#include <memory>

#include "async/real_runtime.h"

namespace millrace::hub {
namespace {

/// The groups of one run, on its thread.
struct Run {
  explicit Run(async::Runtime& runtime)
      : main(runtime, [this](const std::string&, std::exception_ptr error) { failure = std::move(error); }),
        workers(runtime),
        observer(runtime) {}

  void cancel() {
    main.cancel();
    workers.cancel();
  }

  std::exception_ptr failure;
  async::TaskGroup main;
  async::TaskGroup workers;
  async::TaskGroup observer;  // waits for main
};

asio::awaitable<void> report_end(Run& run, std::promise<void>& ended) {
  co_await run.main.join();
  ended.set_value();
}

}  // namespace

Result<void> run_blocking(const BlockingWork& work, const std::stop_token& stop) {
  async::IoThread thread("hub");
  std::unique_ptr<Run> run;
  std::promise<void> ended;
  asio::post(thread.context(), [&] {
    run = std::make_unique<Run>(thread.runtime());
    run->main.spawn("fetch", work(thread.runtime(), run->workers));
    run->observer.spawn("wait", report_end(*run, ended));
  });
  {
    const std::stop_callback cancellation(stop, [&] { asio::post(thread.context(), [&run] { run->cancel(); }); });
    ended.get_future().wait();
  }
  thread.join();
  if (stop.stop_requested()) return make_error(ErrorCode::kAborted, "the download was interrupted");
  try {
    if (run->failure) std::rethrow_exception(run->failure);
  } catch (const ErrorException& error) {
    return error.error();
  }
  return {};
}

asio::awaitable<void> join_workers(async::TaskGroup& workers) {
  // Cancellation reaches the workers by their own signals.
  co_await asio::this_coro::reset_cancellation_state(asio::disable_cancellation());
  co_await workers.join();
  co_await asio::this_coro::reset_cancellation_state(asio::enable_terminal_cancellation());
}

}  // namespace millrace::hub
