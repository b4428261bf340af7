#include "load/runner.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace millrace::load {

using namespace std::chrono_literals;

namespace {

/// Maximum of connections that are opened ahead where concurrency has no limit.
constexpr uint32_t kMaxConnectionsAhead = 512;
constexpr auto kProgressEvery = 500ms;

async::Duration seconds(double count) {
  return std::chrono::duration_cast<async::Duration>(std::chrono::duration<double>(count));
}

/// The id of the first entry of /v1/models; empty when there is none.
std::string first_model_of(const std::string& body) {
  const simdjson::padded_string text(body);
  simdjson::ondemand::parser parser;
  simdjson::ondemand::document document;
  std::string_view id;
  if (parser.iterate(text).get(document) != simdjson::SUCCESS) return "";
  if (document["data"].at(0)["id"].get_string().get(id) != simdjson::SUCCESS) return "";
  return std::string(id);
}

}  // namespace

Runner::Runner(async::Runtime& runtime, const Options& options)
    : runtime_(runtime),
      options_(options),
      workload_(options),
      client_(runtime, options.target, options.api_key, seconds(options.timeout_s)),
      preparation_(runtime,
                   [this](const std::string&, const std::exception_ptr& error) {
                     result_.failure = {FailureKind::kBadData, async::describe(error)};
                   }),
      requests_(runtime),
      progress_(runtime),
      slot_free_(runtime),
      reply_came_(runtime),
      replies_(workload_.conversation_count()) {
  result_.model = options.model;
}

size_t Runner::connections_to_open() const {
  const uint32_t wanted = options_.max_concurrency > 0 ? options_.max_concurrency : kMaxConnectionsAhead;
  return std::min({wanted, options_.num_prompts, 8 * kMaxConnectionsAhead});
}

asio::awaitable<RunResult> Runner::run() {
  preparation_.spawn("prepare", prepare());
  co_await preparation_.join();
  co_await requests_.join();  // warm-ups that an interrupted preparation has left behind
  if (result_.interrupted) {
    result_.failure = {FailureKind::kCancelled, "interrupted before the measurement began"};
  }
  if (result_.failure) co_return std::move(result_);
  result_.records.resize(options_.num_prompts);
  result_.start = runtime_.now();
  if (!options_.quiet && isatty(STDERR_FILENO) == 1) progress_.spawn("progress", show_progress());
  co_await send_all();
  result_.duration = runtime_.now() - result_.start;
  progress_.cancel();
  co_await progress_.join();
  co_return std::move(result_);
}

void Runner::interrupt() {
  result_.interrupted = true;
  preparation_.close();
  preparation_.cancel();
  requests_.close();
  requests_.cancel();
  slot_free_.notify_all();
  reply_came_.notify_all();
}

asio::awaitable<void> Runner::prepare() {
  Failure& failure = result_.failure;
  failure = co_await client_.open(1);
  if (!failure && result_.model.empty()) failure = co_await find_model();
  if (!failure) co_await warm_up();
  if (!failure) failure = co_await client_.open(connections_to_open());
}

asio::awaitable<Failure> Runner::find_model() {
  std::string body;
  HttpReply reply = co_await client_.send(HttpRequest{.method = "GET", .path = "/v1/models", .body = ""},
                                          [&body](std::string_view bytes, async::TimePoint) { body += bytes; });
  if (reply.failure) co_return reply.failure;
  if (reply.status != 200) {
    co_return Failure{FailureKind::kHttpStatus,
                      fmt::format("GET /v1/models: {}: {}", reply.status, error_message_of(reply.body))};
  }
  result_.model = first_model_of(body);
  if (result_.model.empty()) {
    co_return Failure{FailureKind::kBadData, "GET /v1/models names no model; give one with --model"};
  }
  co_return Failure{};
}

asio::awaitable<void> Runner::warm_up() {
  for (uint32_t index = 0; index < options_.warmups && !result_.interrupted && !result_.failure; ++index) {
    co_await wait_for_slot(runtime_.now() - seconds(options_.ramp_up_s));
    ++running_;
    requests_.spawn("warm-up", send_warmup(index));
  }
  co_await requests_.join();
}

asio::awaitable<void> Runner::send_warmup(uint32_t index) {
  RequestRecord record;
  (void)co_await exchange(workload_.warmup(index), index, record);
  if (record.failure && !result_.failure) result_.failure = {record.failure.kind, "warm-up: " + record.failure.message};
  --running_;
  slot_free_.notify_one();
}

asio::awaitable<void> Runner::send_all() {
  const std::vector<async::Duration> due = workload_.arrivals();
  const async::TimePoint start = result_.start;
  for (uint32_t index = 0; index < options_.num_prompts && !result_.interrupted; ++index) {
    // Woken early only by interrupt(), which notifies slot_free_.
    while (runtime_.now() < start + due[index] && !result_.interrupted) {
      co_await slot_free_.wait_until(start + due[index]);
    }
    co_await wait_for_reply(index);
    if (result_.interrupted) break;
    result_.records[index].due_at = due_at(index, start + due[index]);
    co_await wait_for_slot(start);
    if (result_.interrupted) break;
    ++running_;
    result_.max_running = std::max(result_.max_running, running_);
    requests_.spawn("request", send_one(index));
  }
  co_await requests_.join();
}

async::TimePoint Runner::due_at(uint32_t index, async::TimePoint arrival) const {
  if (index < replies_.size()) return arrival;
  const RequestRecord& turn_before = result_.records[index - replies_.size()];
  return std::max(arrival, turn_before.sent_at + turn_before.latency);
}

asio::awaitable<void> Runner::wait_for_reply(uint32_t index) {
  const size_t turn = index / replies_.size();
  const std::vector<std::string>& replies = replies_[index % replies_.size()];
  while (replies.size() < turn && !result_.interrupted) co_await reply_came_.wait();
}

asio::awaitable<void> Runner::wait_for_slot(async::TimePoint start) {
  if (options_.max_concurrency == 0) co_return;
  const bool ramps = options_.ramp_up_s > 0.0 && std::isinf(options_.request_rate);
  while (!result_.interrupted) {
    const async::Duration step = ramps ? seconds(options_.ramp_up_s / options_.max_concurrency) : async::Duration{0};
    uint32_t limit = options_.max_concurrency;
    if (step > async::Duration{0}) {
      const auto steps = static_cast<uint64_t>((runtime_.now() - start) / step);
      limit = static_cast<uint32_t>(std::min<uint64_t>(limit, 1 + steps));
    }
    if (running_ < limit) co_return;
    if (limit < options_.max_concurrency) {
      co_await slot_free_.wait_until(start + step * limit);
    } else {
      co_await slot_free_.wait();
    }
  }
}

asio::awaitable<void> Runner::send_one(uint32_t index) {
  RequestRecord& record = result_.records[index];
  std::vector<std::string>& replies = replies_[index % replies_.size()];
  std::string reply = co_await exchange(workload_.prompt(index, replies), index, record);
  replies.push_back(std::move(reply));
  reply_came_.notify_all();
  --running_;
  ++finished_;
  if (record.failure) ++failed_;
  output_tokens_ += record.output_tokens;
  slot_free_.notify_one();
}

asio::awaitable<std::string> Runner::exchange(Prompt prompt, uint32_t index, RequestRecord& record) {
  StreamReader reader(json_, options_.dataset == Dataset::kMultiTurn);
  HttpRequest request{.method = "POST",
                      .path = options_.endpoint == Endpoint::kChat ? "/v1/chat/completions" : "/v1/completions",
                      .body = workload_.body(prompt, index, result_.model)};
  const HttpReply reply = co_await client_.send(
      std::move(request), [&reader](std::string_view bytes, async::TimePoint at) { reader.feed(bytes, at); });
  reader.finish(reply, prompt.length, record);
  co_return reader.text();
}

asio::awaitable<void> Runner::show_progress() {
  for (;;) {
    co_await async::sleep_for(runtime_, kProgressEvery);
    const double elapsed_s = std::chrono::duration<double>(runtime_.now() - result_.start).count();
    fmt::print(stderr, "\r\033[K{:.0f} s: {} of {} done, {} running, {} failed, {:.0f} output tokens/s", elapsed_s,
               finished_, options_.num_prompts, running_, failed_, static_cast<double>(output_tokens_) / elapsed_s);
    std::fflush(stderr);
  }
}

}  // namespace millrace::load
