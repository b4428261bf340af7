#pragma once

#include <memory>
#include <string>
#include <unordered_map>

#include "async/task_group.h"
#include "async/wait_list.h"
#include "server/generation_routes.h"
#include "server/responses/event_writer.h"

namespace millrace::server {

/// One response that is generated while no client waits for it. Shared by the task that makes it and by the clients
/// that follow it; the server's executor only.
struct BackgroundResponse {
  BackgroundResponse(async::Runtime& runtime, std::string response_id,
                     std::shared_ptr<const responses::WriterInput> writer_input)
      : id(std::move(response_id)), input(std::move(writer_input)), changed(runtime) {}
  [[nodiscard]] const responses::LiveResponse& live() const { return *input->live; }

  const std::string id;
  const std::shared_ptr<const responses::WriterInput> input;
  async::WaitList changed;  ///< notified after each event, and at the end
  bool ended = false;
};

/// The responses in the background that have not ended. Those that have are in the store. Owned by ResponsesRoutes; the
/// server's executor only.
class BackgroundResponses {
 public:
  using Pointer = std::shared_ptr<BackgroundResponse>;

  BackgroundResponses(async::Runtime& runtime, GenerationRoutes& generation)
      : runtime_(runtime), generation_(generation), tasks_(runtime) {}

  /// Starts to generate `spec`, whose writer writes to the live response of `input`.
  Pointer start(GenerationSpec spec, std::shared_ptr<const responses::WriterInput> input);
  /// Returns the response, or null when it is unknown or has ended.
  [[nodiscard]] Pointer find(const std::string& id) const;
  /// Cancels the response, which ends soon. It becomes cancelled unless it ends by itself first.
  void cancel(const std::string& id) { generation_.abort(id); }
  /// Returns when the response has ended.
  [[nodiscard]] static asio::awaitable<void> wait_for_end(Pointer response);
  /// Waits for all responses until `deadline`, and then ends them. No other starts after that.
  [[nodiscard]] asio::awaitable<void> finish(async::TimePoint deadline);

 private:
  asio::awaitable<void> generate(GenerationSpec spec, Pointer response);

  async::Runtime& runtime_;
  GenerationRoutes& generation_;
  std::unordered_map<std::string, Pointer> responses_;
  async::TaskGroup tasks_;
};

}  // namespace millrace::server
