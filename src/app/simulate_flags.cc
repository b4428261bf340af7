#include <CLI/CLI.hpp>

#include "app/number_range.h"
#include "app/simulate.h"

namespace millrace::app {
namespace {

/// Of tokens: varied and behind a prefix they still are numbers of 32 bits.
constexpr uint32_t kMaxTokens = 1 << 30;
constexpr uint32_t kMaxRequests = 1 << 24;

void add_setting_flags(CLI::App& command, SimulateFlags& flags) {
  command.add_option("--cluster", flags.cluster, "File that describes the cluster (see bench/clusters)")->required();
  command.add_flag(
      "--sweep", flags.sweep,
      "Sweep over --pp-size, --chunking, --chunked-prefill-size and --dynamic-chunking-smoothing, where they "
      "are not given, and say which setting is the fastest");
  command
      .add_option(
          "--pp-size", flags.pp_sizes,
          "Stages; a list sweeps, as for the flags that follow (default: 1, or as measured; --sweep: 1, 2, 4, 8)")
      ->delimiter(',')
      ->check(CLI::Range(1, 1024));
  command
      .add_option("--chunking", flags.chunkings,
                  "How prompts are cut: fixed, published, balanced (default: fixed; --sweep: all)")
      ->delimiter(',')
      ->check(CLI::IsMember({"fixed", "published", "balanced"}));
  command
      .add_option("--chunked-prefill-size", flags.chunk_sizes,
                  "Most prompt tokens per micro-batch (default: 8192; --sweep: 2048, 4096, 8192, 16384)")
      ->delimiter(',')
      ->check(CLI::Range(1, 1 << 20));
  command
      .add_option("--dynamic-chunking-smoothing", flags.smoothings,
                  "How far a chunk follows what is computed (default: 0.75; --sweep: 0.5, 0.75, 1)")
      ->delimiter(',')
      ->check(number_range(0.0, 1.0));
  command
      .add_option("--pp-async-batch-depth", flags.async_batch_depths, "Micro-batches in flight beyond one per stage")
      ->delimiter(',')
      ->check(CLI::Range(0, 64))
      ->capture_default_str();
  command.add_option("--schedule-policy", flags.policy, "Order of the queue: fcfs, lpm, priority, shortest")
      ->check(CLI::IsMember({"fcfs", "lpm", "priority", "shortest"}))
      ->capture_default_str();
  command.add_flag("--plain-batch-queue", flags.plain_batch_queue,
                   "Put all ready decodes into the next micro-batch instead of spreading them over the window");
}

void add_workload_flags(CLI::App& command, sim::WorkloadOptions& workload) {
  command.add_option("--num-prompts", workload.requests, "Requests")
      ->check(CLI::Range(1u, kMaxRequests))
      ->capture_default_str();
  command.add_option("--request-rate", workload.rate_per_s, "Poisson arrivals per second; 0: all at once")
      ->check(number_range(0.0, 0.0) | number_range(1e-3, 1e6))
      ->capture_default_str();
  command.add_option("--input-len", workload.input_length, "Prompt tokens")
      ->check(CLI::Range(1u, kMaxTokens))
      ->capture_default_str();
  command.add_option("--output-len", workload.output_length, "Tokens to draw")
      ->check(CLI::Range(1u, kMaxTokens))
      ->capture_default_str();
  command.add_option("--prefix-len", workload.prefix_length, "Prompt tokens before those, common to many requests")
      ->check(CLI::Range(0u, kMaxTokens))
      ->capture_default_str();
  command.add_option("--num-prefixes", workload.prefix_count, "Different ones, drawn at random")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command.add_option("--max-concurrency", workload.max_concurrency, "Requests under way at once; 0: no limit")
      ->capture_default_str();
  command.add_option("--length-spread", workload.spread, "Lengths vary by up to this part to either side")
      ->check(number_range(0.0, 1.0))
      ->capture_default_str();
  command.add_option("--long-share", workload.long_share, "Part of the requests that are long")
      ->check(number_range(0.0, 1.0))
      ->capture_default_str();
  command.add_option("--long-input-len", workload.long_input_length, "Prompt tokens of those")
      ->check(CLI::Range(1u, kMaxTokens))
      ->capture_default_str();
  command.add_option("--seed", workload.seed, "Of arrivals, lengths, jitter and the order of events")
      ->capture_default_str();
}

}  // namespace

void add_simulate_flags(CLI::App& command, SimulateFlags& flags) {
  add_setting_flags(command, flags);
  add_workload_flags(command, flags.workload);
  command
      .add_option("--client-latency-ms", flags.client_latency_ms,
                  "With --max-concurrency: from a request's last token to the next request's being queued")
      ->check(number_range(0.0, 1e6))
      ->capture_default_str();
  command
      .add_option("--requests", flags.requests,
                  "Result file of bench/load: its requests, instead of the flags that describe some")
      ->check(CLI::ExistingFile);
  command.add_option("--goal-ttft", flags.goal.ttft_s, "Seconds to the first token that goodput asks for; 0: any")
      ->check(number_range(0.0, 1e9))
      ->capture_default_str();
  command.add_option("--goal-tpot", flags.goal.tpot_s, "Seconds per further token that goodput asks for; 0: any")
      ->check(number_range(0.0, 1e9))
      ->capture_default_str();
  command.add_option("--result-file", flags.result_file, "Write the table as a JSON array, times in ms");
  command.add_option("--plot", flags.plot, "Write the efficiency over the sweep as an SVG file");
  command.add_option("--plot-x", flags.plot_x, "Its horizontal axis: pp, chunk, smoothing")
      ->check(CLI::IsMember({"pp", "chunk", "smoothing"}))
      ->capture_default_str();
  command.add_option("--trace", flags.trace,
                     "Write what each stage did in the last run, for Perfetto and `millrace trace`");
}

}  // namespace millrace::app
