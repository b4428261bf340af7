#include "app/flag_types.h"
#include "app/simulate.h"

namespace millrace::app {
namespace {

/// The limit of lengths in tokens: a length that is varied and follows a prefix still has 32 bits.
constexpr NumberRange kTokens{1, 1 << 30};

/// Adds a flag that takes a list of numbers.
template <class Number>
CLI::Option* add_list(CLI::App& command, const std::string& flag, std::vector<Number>& target, NumberRange range,
                      const std::string& help) {
  return command.add_option(flag, target, help)
      ->delimiter(',')
      ->check(number_range(range.low, range.high))
      ->type_name("N,N,...");
}

void add_setting_flags(CLI::App& command, SimulateFlags& flags) {
  command.option_defaults()->group("Cluster and settings; lists sweep over all combinations");
  command.add_option("--cluster", flags.cluster, "Describes the cluster in this file (see bench/clusters).")
      ->required()
      ->type_name("FILE");
  command.add_flag("--sweep", flags.sweep,
                   "Sweeps over --pp-size, --chunking, --chunked-prefill-size and --dynamic-chunking-smoothing, where "
                   "they are not given, and says which setting is the fastest.");
  add_list(command, "--pp-size", flags.pp_sizes, {1, 1024}, "Sets the number of stages.")
      ->default_str("1, or as measured; with --sweep 1,2,4,8");
  add_list(command, "--tp-size", flags.tp_sizes, {1, 1024}, "Sets the number of ranks per stage, a power of two.")
      ->default_str("as described");
  command
      .add_option_function<std::vector<std::string>>(
          "--chunking",
          [&flags](const std::vector<std::string>& names) {
            for (const std::string& name : names) flags.chunkings.push_back(*parse_enum<sched::Chunking>(name));
          },
          "Sets how prompts are cut into chunks: " + joined_enum_names<sched::Chunking>() + ".")
      ->delimiter(',')
      ->check(CLI::IsMember(names_with<sched::Chunking>()).description(""))
      ->type_name("NAME,...")
      ->default_str("fixed; with --sweep all");
  add_list(command, "--chunked-prefill-size", flags.chunk_sizes, {1, 1 << 20},
           "Limits the prompt tokens per micro-batch.")
      ->default_str("8192; with --sweep 2048,4096,8192,16384");
  add_list(command, "--dynamic-chunking-smoothing", flags.smoothings, {0, 1},
           "Sets how far a chunk follows the computed length.")
      ->default_str("0.75; with --sweep 0.5,0.75,1");
  add_list(command, "--pp-async-batch-depth", flags.async_batch_depths, {0, 64},
           "Keeps this many micro-batches in flight beyond one per stage.")
      ->default_str("0");
  add_choice(command, "--schedule-policy", flags.policy,
             "Orders the queue: " + joined_enum_names<sched::QueuePolicy>() + ".");
  command.add_flag("--plain-batch-queue", flags.plain_batch_queue,
                   "Puts all ready decode steps into the next micro-batch instead of spreading them over the window.");
}

void add_workload_flags(CLI::App& command, SimulateFlags& flags) {
  sim::WorkloadOptions& workload = flags.workload;
  command.option_defaults()->group("Workload");
  command
      .add_option("--requests", flags.requests,
                  "Replays the requests of this result file of bench/load, in place of the flags below.")
      ->check(CLI::ExistingFile.description(""))
      ->type_name("FILE");
  add_number(command, "--num-prompts", workload.requests, {1, 1 << 24}, "Sets the number of requests.");
  command.add_option("--request-rate", workload.rate_per_s, "Sets the Poisson arrivals per second; 0: all at once.")
      ->check((number_range(0, 0) | number_range(1e-3, 1e6)).description("0, or 0.001 to 1000000"))
      ->type_name("N")
      ->capture_default_str();
  add_number(command, "--input-len", workload.input_length, kTokens, "Sets the prompt tokens after the prefix.");
  add_number(command, "--output-len", workload.output_length, kTokens, "Sets the tokens of an output.");
  add_number(command, "--prefix-len", workload.prefix_length, {0, kTokens.high},
             "Sets the prompt tokens of a prefix that many requests share.");
  add_number(command, "--num-prefixes", workload.prefix_count, {1, 1 << 20},
             "Sets the number of such prefixes, of which each request draws one.");
  command
      .add_option("--max-concurrency", workload.max_concurrency, "Limits the requests under way at once; 0: no limit.")
      ->type_name("N")
      ->capture_default_str();
  add_number(command, "--client-latency-ms", flags.client_latency_ms, {0, 1e6},
             "Sets the milliseconds from a request's last token to the next request, with --max-concurrency.");
  add_number(command, "--length-spread", workload.spread, {0, 1}, "Varies lengths by up to this part to either side.");
  add_number(command, "--long-share", workload.long_share, {0, 1}, "Sets the part of the requests that are long.");
  add_number(command, "--long-input-len", workload.long_input_length, kTokens,
             "Sets the prompt tokens of long requests.");
  command
      .add_option("--seed", workload.seed,
                  "Seeds arrivals, lengths, jitter and the order of events: equal seeds give equal runs.")
      ->type_name("N")
      ->capture_default_str();
}

void add_model_flags(CLI::App& command, SimulateFlags& flags) {
  command.option_defaults()->group("A model's needs, in place of a workload");
  command
      .add_option("--model-path", flags.model_path,
                  "Reports how many stages of the cluster's devices the model of this folder's config.json needs, and "
                  "which contexts fit.")
      ->type_name("DIR");
  add_choice(command, "--quantization", flags.quantization,
             "Counts projections in these bits: " + joined_enum_names<model::Quantization>() + ".");
  add_choice(command, "--kv-cache-dtype", flags.kv_dtype,
             "Counts the KV cache in these bits: " + joined_enum_names<tensor::KvDType>() + ".");
  add_number(command, "--context-length", flags.context_length, {0, kTokens.high},
             "Sets the tokens of a sequence that shall fit; 0: the model's context.");
  add_list(command, "--sequences", flags.sequences, {1, 1 << 20},
           "Sets the numbers of sequences; the first one shall fit.")
      ->default_str("1,8,64");
  add_number(command, "--mem-fraction-static", flags.memory_fraction, {0.01, 1},
             "Sets the part of the memory beside weights that the KV cache takes.");
  add_number(command, "--page-size", flags.page_size, {1, 1 << 16}, "Sets the tokens per page of the KV cache.");
}

void add_result_flags(CLI::App& command, SimulateFlags& flags) {
  command.option_defaults()->group("Results");
  add_number(command, "--goal-ttft", flags.goal.ttft_s, {0, 1e9},
             "Counts a request as good within this time to the first token; 0: no goal.")
      ->type_name("SECONDS");
  add_number(command, "--goal-tpot", flags.goal.tpot_s, {0, 1e9},
             "Counts a request as good within this time per further token; 0: no goal.")
      ->type_name("SECONDS");
  command.add_option("--result-file", flags.result_file, "Writes the table as a JSON array, times in ms.")
      ->type_name("FILE");
  command.add_option("--plot", flags.plot, "Writes the efficiency over the sweep as an SVG file.")->type_name("FILE");
  add_choice(command, "--plot-x", flags.plot_x,
             "Selects the horizontal axis of the plot: " + joined_enum_names<PlotAxis>() + ".");
  command
      .add_option("--trace", flags.trace,
                  "Writes what each stage did in the last run, for Perfetto and `millrace trace`.")
      ->type_name("FILE");
}

}  // namespace

void add_simulate_flags(CLI::App& command, SimulateFlags& flags) {
  add_setting_flags(command, flags);
  add_workload_flags(command, flags);
  add_model_flags(command, flags);
  add_result_flags(command, flags);
}

}  // namespace millrace::app
