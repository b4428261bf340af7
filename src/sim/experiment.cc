#include "sim/experiment.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "sim/cluster.h"
#include "sim/max_duration.h"
#include "sim/simulated_ring.h"

namespace millrace::sim {
namespace {

using namespace std::chrono_literals;
using async::TimePoint;

constexpr auto kHeartbeat = 10s;
constexpr auto kWatchdog = 1000h;
static_assert(kWatchdog < kMaxDuration);
/// Virtual time in which a head makes fewer plans than it keeps records.
constexpr auto kRecordsInterval = 100ms;
/// Bounds of virtual time, far beyond what is worth simulating.
constexpr auto kMaxProfileTime = 30 * 24h;
constexpr auto kMaxRunTime = 30 * 365 * 24h;

/// Returns a duration of a description or workload, limited to kMaxDuration.
async::Duration duration_of(double s) {
  constexpr double kMaxSeconds = 1e9;
  static_assert(std::chrono::duration<double>(kMaxSeconds) > kMaxRunTime);
  return async::Duration(static_cast<int64_t>(std::min(s, kMaxSeconds) * 1e9));
}

SimulatedRingOptions ring_options(const Cluster& cluster, const ExperimentConfig& setting) {
  SimulatedRingOptions options;
  options.stage_count = static_cast<uint32_t>(setting.pp_size);
  options.model.vocab_size = std::numeric_limits<TokenId>::max();  // every request gets tokens of its own
  sched::SchedulerOptions& scheduler = options.head.scheduler;
  scheduler.page_size = cluster.page_size;
  scheduler.page_count = cluster.page_count;
  scheduler.max_running = cluster.max_running;
  scheduler.window = static_cast<uint32_t>(setting.pp_size + setting.async_batch_depth);
  scheduler.chunked_prefill_size = setting.chunk_size;
  scheduler.context_length = cluster.context_length;
  scheduler.stage_count = options.stage_count;
  scheduler.chunking = setting.chunking;
  scheduler.chunk_smoothing = setting.smoothing;
  scheduler.policy = setting.policy;
  scheduler.spread_decodes = setting.spread_decodes;
  if (cluster.machine) {
    scheduler.processors = cluster.machine->processors;
    scheduler.stage_threads = cluster.machine->threads;
  }
  options.head.max_queued = std::numeric_limits<uint32_t>::max();
  options.head.heartbeat = kHeartbeat;
  options.head.watchdog = kWatchdog;
  options.links.bytes_per_second = cluster.link_bytes_per_second;
  options.links.latency = duration_of(cluster.link_latency_us * 1e-6);
  options.links.keeps_bytes = false;
  if (cluster.head_latency_us) {
    options.head_links = options.links;
    options.head_links->latency = duration_of(0.5e-6 * *cluster.head_latency_us);
  }
  return options;
}

/// Returns a prompt that repeats one token for the group's prefix and another for the request's own part. The prefix
/// cache treats it as any text.
std::vector<TokenId> prompt_of(const RequestArrival& arrival, size_t index) {
  std::vector<TokenId> prompt(arrival.prefix_length, static_cast<TokenId>(2 * arrival.prefix_group));
  prompt.resize(arrival.input_length, static_cast<TokenId>(2 * index + 1));
  return prompt;
}

/// Sends one request and follows it to its end.
asio::awaitable<void> send_one(async::Runtime& runtime, sched::Engine& engine, const RequestArrival& arrival,
                               size_t index, TimePoint start, RequestResult& result) {
  const TimePoint sent = runtime.now();
  sched::GenerateRequest request;
  request.id = std::to_string(index);
  request.prompt = prompt_of(arrival, index);
  request.max_tokens = arrival.output_length;
  auto stream = engine.submit(std::move(request), runtime);
  result.is_long = arrival.is_long;
  if (stream.has_error()) {
    result.error = stream.error();
    co_return;
  }
  TimePoint first{};
  for (;;) {
    const sched::GenerateEvent event = co_await (*stream)->next();
    result.cached_tokens = event.cached_tokens;
    if (first == TimePoint{} && !event.tokens.empty()) first = runtime.now();
    if (event.last()) {
      result.ok = event.finish.has_value();
      result.error = event.error;
      break;
    }
  }
  result.ttft_s = async::to_seconds(first - sent);
  if (arrival.output_length > 1) result.tpot_s = async::to_seconds(runtime.now() - first) / (arrival.output_length - 1);
  result.end_s = async::to_seconds(runtime.now() - start);
}

/// Sends the requests when they are due and the concurrency limit allows. Lives on the clients' virtual thread.
class Clients {
 public:
  Clients(async::Runtime& runtime, sched::Engine& engine, const Workload& workload, std::vector<RequestResult>& results)
      : runtime_(runtime),
        engine_(engine),
        workload_(workload),
        results_(results),
        one_ended_(runtime),
        tasks_(runtime) {}

  void start() { tasks_.spawn("clients", send_all(runtime_.now())); }
  [[nodiscard]] bool done() const { return tasks_.size() == 0; }

 private:
  asio::awaitable<void> send_all(TimePoint start) {
    for (size_t i = 0; i < workload_.arrivals.size(); ++i) {
      co_await async::sleep_for(runtime_, start + duration_of(workload_.arrivals[i].at_s) - runtime_.now());
      while (workload_.max_concurrency > 0 && running_ == workload_.max_concurrency) co_await one_ended_.wait();
      ++running_;
      tasks_.spawn("client", send(i, start));
    }
  }

  /// A client's share of the request concurrency, which it has until it ends in any way.
  struct RunningSlot {
    Clients& home;
    ~RunningSlot() {
      --home.running_;
      home.one_ended_.notify_one();
    }
  };

  asio::awaitable<void> send(size_t index, TimePoint start) {
    const RunningSlot running_slot{*this};
    co_await send_one(runtime_, engine_, workload_.arrivals[index], index, start, results_[index]);
    if (workload_.client_latency_s > 0) co_await async::sleep_for(runtime_, duration_of(workload_.client_latency_s));
  }

  async::Runtime& runtime_;
  sched::Engine& engine_;
  const Workload& workload_;
  std::vector<RequestResult>& results_;
  uint32_t running_ = 0;
  async::WaitList one_ended_;
  async::TaskGroup tasks_;
};

/// Runs the world until `done`, which it checks at every virtual `step`. Returns false if it is not done at `latest`.
template <class Condition>
bool run_until(async::VirtualWorld& world, TimePoint& time, async::Duration step, TimePoint latest, Condition done) {
  while (!done()) {
    if (time >= latest) return false;
    world.run(time += step);
  }
  return true;
}

void stop(async::VirtualWorld& world, SimulatedRing& ring) {
  ring.stop();
  world.run();
}

void take_records(const sched::RingView& ring, uint64_t& seen, PlanRecords& records) {
  for (sched::PlanRecord& record : ring.records_after(seen)) {
    records.lost += record.number - seen - 1;
    seen = record.number;
    records.complete.push_back(std::move(record));
  }
}

/// Returns a quantile, interpolated between the two nearest values as bench/load and numpy do; 0 without values.
double quantile_of(std::vector<double> values, double quantile) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  const double place = quantile * static_cast<double>(values.size() - 1);
  const auto below = static_cast<size_t>(place);
  const size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (place - static_cast<double>(below)) * (values[above] - values[below]);
}

/// Returns the mean; 0 without values.
double mean_of(const std::vector<double>& values) {
  return values.empty() ? 0 : std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

std::vector<double> ttfts_of(const std::vector<RequestResult>& requests, std::optional<bool> is_long) {
  std::vector<double> values;
  for (const RequestResult& request : requests) {
    if (request.ok && is_long.value_or(request.is_long) == request.is_long) values.push_back(request.ttft_s);
  }
  return values;
}

std::vector<double> tpots_of(const std::vector<RequestResult>& requests) {
  std::vector<double> values;
  for (const RequestResult& request : requests) {
    if (request.ok && request.tpot_s > 0) values.push_back(request.tpot_s);
  }
  return values;
}

}  // namespace

Result<ExperimentResult> run_experiment(const Cluster& cluster, const ExperimentConfig& setting,
                                        const Workload& workload, uint64_t seed, PlanRecords* records) {
  const auto stages = cluster.divide(setting.pp_size, setting.tp_size);
  if (stages.has_error()) return stages.error();
  ExperimentResult result;
  result.requests.resize(workload.arrivals.size());
  async::VirtualWorld world(seed);
  SimulatedRingOptions options = ring_options(cluster, setting);
  const auto row_bytes = static_cast<size_t>(cluster.activation_bytes_per_token);
  const size_t max_rows = sched::max_prompt_tokens(setting.chunking, setting.chunk_size) + cluster.max_running;
  const std::shared_ptr<std::byte[]> scratch = std::make_shared_for_overwrite<std::byte[]>(max_rows * (row_bytes + 1));
  Processors processors(cluster.machine.value_or(sched::SharedMachine{}));
  std::vector<StageWork> work(setting.pp_size);
  options.make_runner = [&](async::Runtime& runtime, StageId stage) {
    return std::make_unique<TimedRunner>(
        runtime, (*stages)[stage.value()], scratch, [&world] { return world.random(); }, work[stage.value()],
        cluster.machine ? &processors : nullptr);
  };
  SimulatedRing ring(world, options);
  TimePoint time{};
  if (!run_until(world, time, 1s, TimePoint(kMaxProfileTime), [&] { return ring.head().status().ready; })) {
    stop(world, ring);
    return Error{ErrorCode::kInvalidArgument,
                 "the ring takes more than 30 days to be ready: are the times of the description in microseconds?"};
  }
  result.profile_s = async::to_seconds(time.time_since_epoch());

  std::ranges::fill(work, StageWork{});  // without the profile, which the records leave out too
  const sched::RingView& stats = *ring.head().ring_stats();
  const auto newest = stats.records_after(0, 1);
  uint64_t seen_records = newest.empty() ? 0 : newest.back().number;
  Clients clients(world.add_thread(), ring.head(), workload, result.requests);
  clients.start();
  const auto step = records == nullptr ? async::Duration(1s) : async::Duration(kRecordsInterval);
  const bool ended = run_until(world, time, step, TimePoint(kMaxRunTime), [&] {
    if (records != nullptr) take_records(stats, seen_records, *records);
    return clients.done();
  });
  result.preemptions = ring.head().status().preemptions;
  if (records != nullptr) {
    world.run(time += 3 * kHeartbeat);  // whose empty plans bring the stages' last reports
    take_records(stats, seen_records, *records);
  }
  stop(world, ring);
  if (!ended) return Error{ErrorCode::kInvalidArgument, "the workload takes more than 30 years"};
  result.events = world.step_count();

  double input = 0;
  double output = 0;
  double cached = 0;
  for (size_t i = 0; i < workload.arrivals.size(); ++i) {
    if (!result.requests[i].ok) continue;
    result.makespan_s = std::max(result.makespan_s, result.requests[i].end_s);
    input += workload.arrivals[i].input_length;
    output += workload.arrivals[i].output_length;
    cached += result.requests[i].cached_tokens;
  }
  if (result.makespan_s > 0) {
    result.cached_share = cached / input;
    result.input_tokens_per_s = input / result.makespan_s;
    result.output_tokens_per_s = output / result.makespan_s;
    double busy_s = 0;
    for (const StageWork& each : work) busy_s += async::to_seconds(each.busy);
    result.bubble_ratio = 1 - busy_s / (result.makespan_s * setting.pp_size);
  }
  result.plans = work.front().runs;
  return result;
}

size_t ExperimentResult::failed_count() const {
  return static_cast<size_t>(std::ranges::count_if(requests, [](const RequestResult& request) { return !request.ok; }));
}

std::optional<Error> ExperimentResult::first_error() const {
  const auto failed = std::ranges::find_if(requests, [](const RequestResult& request) { return !request.ok; });
  return failed == requests.end() ? std::nullopt : failed->error;
}

double ExperimentResult::ttft_s(double quantile, std::optional<bool> is_long) const {
  return quantile_of(ttfts_of(requests, is_long), quantile);
}

double ExperimentResult::tpot_s(double quantile) const {
  return quantile_of(tpots_of(requests), quantile);
}

double ExperimentResult::mean_ttft_s() const {
  return mean_of(ttfts_of(requests, {}));
}

double ExperimentResult::mean_tpot_s() const {
  return mean_of(tpots_of(requests));
}

double ExperimentResult::goodput(const ServiceGoal& goal) const {
  const auto good = std::ranges::count_if(requests, [&](const RequestResult& request) {
    return request.ok && (goal.ttft_s == 0 || request.ttft_s <= goal.ttft_s) &&
           (goal.tpot_s == 0 || request.tpot_s <= goal.tpot_s);
  });
  return makespan_s > 0 ? static_cast<double>(good) / makespan_s : 0;
}

}  // namespace millrace::sim
