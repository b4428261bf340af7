#include "server/observe/server_metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "sched/head/engine_status.h"
#include "server/observe/metric_writer.h"
#include "server/openai/response.h"

namespace millrace::server {
namespace {

constexpr std::array kFirstTokenBounds = {.001, .005, .01, .02, .04, .06, .08, .1,  .25,  .5,   .75,
                                          1.0,  2.5,  5.0, 7.5, 10., 20., 40., 80., 160., 640., 2560.};
constexpr std::array kInterTokenBounds = {.001, .0025, .005, .01, .025, .05, .075, .1,  .15, .2,  .3,
                                          .4,   .5,    .75,  1.,  2.5,  5.,  7.5,  10., 20., 40., 80.};
constexpr std::array kLatencyBounds = {.01, .05, .1,  .3,  .5,  .8,  1.,  1.5,  2.,   2.5,  5.,
                                       10., 15., 20., 30., 40., 50., 60., 120., 240., 480., 960.};
constexpr std::array kLengthBounds = {1.,  2.,  5.,  10., 20., 50., 100., 200., 500.,
                                      1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5,  2e5,  5e5};

/// Writes families with the model's label; those that vLLM's dashboards show, under both prefixes.
class Writer {
 public:
  Writer(std::string& out, std::string_view model_name)
      : vllm_(out, "vllm:"), millrace_(out, "millrace:"), labels_(model_label(model_name)) {}

  template <class Number>
  void gauge(std::string_view name, std::string_view help, Number value) {
    both("gauge", name, help, value);
  }
  template <class Number>
  void counter(std::string_view name, std::string_view help, Number value) {
    both("counter", name, help, value);
  }
  void histogram(std::string_view name, std::string_view help, const Histogram& values) {
    for (MetricWriter* writer : {&vllm_, &millrace_}) {
      writer->describe(name, "histogram", help);
      writer->histogram(name, labels_, values.bounds(), values.counts(), values.sum());
    }
  }
  /// Appends a family that vLLM does not have.
  template <class Number>
  void own(std::string_view type, std::string_view name, std::string_view help, Number value) {
    millrace_.describe(name, type, help);
    millrace_.sample(name, labels_, value);
  }
  [[nodiscard]] std::string labels_and(std::string_view more) const { return fmt::format("{},{}", labels_, more); }
  MetricWriter& vllm() { return vllm_; }
  MetricWriter& millrace() { return millrace_; }

 private:
  template <class Number>
  void both(std::string_view type, std::string_view name, std::string_view help, Number value) {
    for (MetricWriter* writer : {&vllm_, &millrace_}) {
      writer->describe(name, type, help);
      writer->sample(name, labels_, value);
    }
  }

  MetricWriter vllm_;
  MetricWriter millrace_;
  const std::string labels_;
};

void write_cache_counts(Writer& writer, const cache::PrefixCacheCounts& counts) {
  const auto pages = [&](auto name, auto help, uint64_t count) { writer.own("counter", name, help, count); };
  pages("kv_cache_device_hit_pages_total", "Prompt pages found on the device.", counts.device_hit_pages);
  pages("kv_cache_host_hit_pages_total", "Prompt pages found on the host and loaded.", counts.host_hit_pages);
  pages("kv_cache_missed_pages_total", "Prompt pages that had to be computed.", counts.missed_pages);
  pages("kv_cache_evicted_pages_total", "Device pages evicted.", counts.evicted_device_pages);
  pages("kv_cache_evicted_host_pages_total", "Host pages evicted.", counts.evicted_host_pages);
  pages("kv_cache_stored_pages_total", "Pages copied from the device to the host.", counts.stored_pages);
  pages("kv_cache_persisted_pages_total",
        "Pages written to the store by every stage, up to the first of a copy that was refused.",
        counts.persisted_pages);
  pages("kv_cache_unpersisted_pages_total", "Pages not written because the page store was behind.",
        counts.unpersisted_pages);
  pages("kv_cache_fetched_pages_total", "Pages that every stage got from the store.", counts.fetched_pages);
}

/// Appends the pages of the window groups, if the model has any.
void write_windows(Writer& writer, const std::vector<sched::WindowStatus>& windows) {
  if (windows.empty()) return;
  const auto pages = [&](std::string_view name, std::string_view help, uint64_t sched::WindowStatus::* value) {
    writer.millrace().describe(name, "gauge", help);
    for (const sched::WindowStatus& one : windows) {
      const std::string label = one.kind == GroupKind::kState ? "state" : std::to_string(one.window);
      writer.millrace().sample(name, writer.labels_and(fmt::format("window=\"{}\"", label)), one.*value);
    }
  };
  pages("kv_cache_window_free_pages", "Free pages of layers with a sliding window, or with states.",
        &sched::WindowStatus::free_pages);
  pages("kv_cache_window_total_pages", "Pages of layers with a sliding window, or with states.",
        &sched::WindowStatus::total_pages);
  pages("kv_cache_window_cached_pages", "Device pages of such layers that hold cached prefixes.",
        &sched::WindowStatus::cached_pages);
  pages("kv_cache_window_host_pages", "Host pages of such layers that hold cached prefixes.",
        &sched::WindowStatus::cached_host_pages);
}

/// Appends the size of the cache, once there is one: routers compute from it how many prefixes a server can keep.
void write_cache_config(Writer& writer, const sched::EngineStatus& status) {
  if (status.page_size == 0) return;
  writer.vllm().describe("cache_config_info", "gauge", "KV cache pages, with the tokens per page as a label.");
  writer.vllm().sample("cache_config_info",
                       writer.labels_and(fmt::format("block_size=\"{}\",num_gpu_blocks=\"{}\",num_cpu_blocks=\"{}\"",
                                                     status.page_size, status.total_pages, status.host_pages)),
                       1);
}

}  // namespace

ServerMetrics::ServerMetrics()
    : time_to_first_token(kFirstTokenBounds),
      inter_token_latency(kInterTokenBounds),
      e2e_latency(kLatencyBounds),
      queue_time(kLatencyBounds),
      prefill_time(kLatencyBounds),
      decode_time(kLatencyBounds),
      prompt_length(kLengthBounds),
      generation_length(kLengthBounds) {}

std::string ServerMetrics::render(std::string_view model_name, const sched::EngineStatus& status,
                                  const ServerLoad& load) const {
  std::string out;
  Writer writer(out, model_name);
  writer.gauge("num_requests_running", "Sequences that are being computed.", status.running);
  writer.gauge("num_requests_waiting", "Sequences that wait to be scheduled.", status.waiting);
  const uint64_t used = status.total_pages - std::min(status.free_pages, status.total_pages);
  writer.gauge("kv_cache_usage_perc", "Used share of the KV cache, 0 to 1.",
               status.total_pages == 0 ? 0.0 : static_cast<double>(used) / static_cast<double>(status.total_pages));
  write_cache_config(writer, status);
  writer.counter("num_preemptions_total", "Running requests retracted for lack of pages.", status.preemptions);
  const auto sum = [](const auto& by_source) {
    return std::accumulate(by_source.begin(), by_source.end(), uint64_t{0});
  };
  writer.counter("spec_decode_num_draft_tokens_total", "Draft tokens.", sum(status.drafts.drafted));
  writer.counter("spec_decode_num_accepted_tokens_total", "Draft tokens that were accepted.",
                 sum(status.drafts.accepted));
  writer.counter("prompt_tokens_total", "Prompt tokens of requests that have their first token.", prompt_tokens);
  writer.counter("generation_tokens_total", "Tokens generated.", generation_tokens);
  writer.counter("prefix_cache_queries_total", "Prompt tokens looked up in the cache.", prompt_tokens);
  writer.counter("prefix_cache_hits_total", "Prompt tokens found in the cache.", cached_tokens);
  writer.own("gauge", "kv_cache_cached_pages", "Device pages that hold cached prefixes.", status.cached_pages);
  writer.own("gauge", "kv_cache_host_pages", "Host pages that hold cached prefixes.", status.cached_host_pages);
  write_windows(writer, status.windows);
  write_cache_counts(writer, status.cache);
  for (MetricWriter* each : {&writer.vllm(), &writer.millrace()}) {
    each->describe("request_success_total", "counter", "Choices that ended without an error, by reason.");
    for (size_t reason = 0; reason < finished_.size(); ++reason) {
      const auto word = openai::to_string(static_cast<sched::FinishReason>(reason));
      each->sample("request_success_total", writer.labels_and(fmt::format("finished_reason=\"{}\"", word)),
                   finished_[reason]);
    }
  }
  writer.histogram("time_to_first_token_seconds", "Arrival to first token.", time_to_first_token);
  writer.histogram("inter_token_latency_seconds", "Gap between tokens of a choice.", inter_token_latency);
  writer.histogram("e2e_request_latency_seconds", "Arrival to last token.", e2e_latency);
  writer.histogram("request_queue_time_seconds", "Submission to first scheduling.", queue_time);
  writer.histogram("request_prefill_time_seconds", "First scheduling to first token.", prefill_time);
  writer.histogram("request_decode_time_seconds", "First token to last token.", decode_time);
  writer.histogram("request_prompt_tokens", "Tokens of a prompt.", prompt_length);
  writer.histogram("request_generation_tokens", "Tokens of a choice.", generation_length);
  writer.millrace().describe("http_requests_total", "counter", "HTTP responses by route and status.");
  for (const auto& [key, count] : http_requests_) {
    const std::string labels = fmt::format("route=\"{}\",status=\"{}\"", escape_label(key.first), key.second);
    writer.millrace().sample("http_requests_total", writer.labels_and(labels), count);
  }
  writer.own("counter", "client_disconnects_total", "Requests whose client disconnected.", disconnects);
  writer.own("gauge", "http_generations_in_flight", "Generation requests that are being answered.", load.in_flight);
  writer.own("gauge", "http_connections", "Open client connections.", load.connections);
  writer.own("gauge", "http_body_bytes", "Bytes of requests' bodies, without the first 64 KiB of each.",
             load.body_bytes);
  writer.own("gauge", "engine_ready", "1 when the engine accepts requests.", status.ready ? 1 : 0);
  return out;
}

}  // namespace millrace::server
