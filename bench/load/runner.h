#pragma once

#include <simdjson.h>

#include <vector>

#include "async/task_group.h"
#include "async/wait_list.h"
#include "load/http_client.h"
#include "load/options.h"
#include "load/stream_reader.h"
#include "load/workload.h"

namespace millrace::load {

/// What a run measured.
struct RunResult {
  std::string model;
  async::TimePoint start;              ///< arrivals count from here
  async::Duration duration{0};         ///< from the start to the end of the last request
  std::vector<RequestRecord> records;  ///< [num_prompts], in order of arrival
  uint32_t max_running = 0;            ///< requests in flight at once, at most
  bool interrupted = false;
  Failure failure;  ///< why nothing was measured
};

/// Sends the requests of one workload and measures them. Lives on the runtime's executor; one run per object.
class Runner {
 public:
  Runner(async::Runtime& runtime, const Options& options);

  /// Finds the model, opens connections, warms up, then sends everything. Returns when nothing is in flight any more.
  [[nodiscard]] asio::awaitable<RunResult> run();
  /// Sends nothing more and cancels what is in flight; run() then returns what it has, a failure where that is nothing.
  void interrupt();

 private:
  /// Leaves what went wrong in `result_`.
  [[nodiscard]] asio::awaitable<void> prepare();
  [[nodiscard]] asio::awaitable<Failure> find_model();
  [[nodiscard]] asio::awaitable<void> warm_up();
  [[nodiscard]] asio::awaitable<void> send_all();
  [[nodiscard]] asio::awaitable<void> send_one(uint32_t index);
  [[nodiscard]] asio::awaitable<void> send_warmup(uint32_t index);
  [[nodiscard]] asio::awaitable<std::string> exchange(Prompt prompt, uint32_t index, RequestRecord& record);
  /// When a request that has come at `arrival` could be sent first.
  [[nodiscard]] async::TimePoint due_at(uint32_t index, async::TimePoint arrival) const;
  /// Waits until the turn before this one has been answered.
  [[nodiscard]] asio::awaitable<void> wait_for_reply(uint32_t index);
  /// Waits until one more request may be in flight.
  [[nodiscard]] asio::awaitable<void> wait_for_slot(async::TimePoint start);
  [[nodiscard]] asio::awaitable<void> show_progress();
  [[nodiscard]] size_t connections_to_open() const;

  async::Runtime& runtime_;
  const Options& options_;
  Workload workload_;
  HttpClient client_;
  simdjson::ondemand::parser json_;
  async::TaskGroup preparation_;
  async::TaskGroup requests_;
  async::TaskGroup progress_;
  async::WaitList slot_free_;
  async::WaitList reply_came_;
  std::vector<std::vector<std::string>> replies_;  // [conversations], of the turns so far
  RunResult result_;
  uint32_t running_ = 0;
  uint32_t finished_ = 0;
  uint32_t failed_ = 0;
  uint64_t output_tokens_ = 0;
};

}  // namespace millrace::load
