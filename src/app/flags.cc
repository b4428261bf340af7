#include "app/flags.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdlib>

#include "app/launcher_env.h"
#include "app/number_range.h"
#include "base/json_value.h"
#include "cpu/isa.h"
#include "text/tool_calls/tool_formats.h"

namespace millrace::app {
namespace {

constexpr uint16_t kDefaultClusterPort = 30100;

struct RawFlags {
  std::vector<std::string> served_model_names;
  uint32_t max_header_kib = 16;
  double header_timeout_s = 10;
  double body_timeout_s = 60;
  double idle_timeout_s = 75;
  double write_timeout_s = 30;
  double comment_interval_s = 15;
  std::string dist_init_addr;
  double drain_timeout_s = 30;
  std::string log_level = "info";
  size_t max_body_mib = 16;
  size_t max_bodies_mib = 512;
};

/// What is wrong with it, or nothing.
std::string is_json_object(const std::string& text) {
  const auto document = JsonDocument::parse(text);
  if (document && document->root().is_object()) return {};
  return fmt::format("'{}' is not a JSON object{}{}", text.substr(0, 256), document ? "" : ": ",
                     document ? "" : document.error().message);
}

/// How the model is spoken to, besides what a request says.
void add_conversation_flags(CLI::App& serve, ServeFlags& flags) {
  serve.add_option("--chat-template", flags.chat_template, "File with a Jinja template instead of the model's own");
  serve
      .add_option("--default-chat-template-kwargs", flags.server.default_chat_template_kwargs,
                  "JSON object of variables of the chat template, where a request gives none of their names")
      ->check(is_json_object);
  serve
      .add_option("--override-generation-config", flags.generation_config,
                  "JSON object whose members go before those of generation_config.json")
      ->check(is_json_object);
  std::vector<std::string> parsers = text::tool_format_names();
  const std::string formats = fmt::format("{}", fmt::join(parsers, ", "));
  parsers.insert(parsers.end(), {"auto", "none"});
  serve
      .add_option("--tool-call-parser", flags.server.tool_call_parser,
                  "How the model writes calls of tools: auto (as its chat template asks), " + formats + ", none")
      ->check(CLI::IsMember(parsers))
      ->capture_default_str();
  serve
      .add_option("--reasoning-parser", flags.server.reasoning_parser,
                  "Which part of an answer is reasoning: auto (think if the chat template knows of it), think (from "
                  "<think> to </think>), none")
      ->check(CLI::IsMember({"auto", "think", "none"}))
      ->capture_default_str();
}

void add_model_flags(CLI::App& serve, ServeFlags& flags, RawFlags& raw) {
  EngineOptions& engine = flags.engine;
  serve.add_option("--model-path", engine.model_path, "Folder with config.json, safetensors and tokenizer.json")
      ->required();
  serve.add_option(
      "--served-model-name", raw.served_model_names,
      "Names in the API; the first is that of answers to requests without one (default: the folder's name)");
  serve
      .add_option("--context-length", engine.context_length,
                  "Tokens of prompt and output together (default: the model's own)")
      ->check(CLI::Range(1, 1 << 24));
  serve.add_option("--dtype", engine.dtype, "Arithmetic of products and of the KV cache")
      ->check(CLI::IsMember({"auto", "bf16", "f32"}))
      ->capture_default_str();
  serve
      .add_option("--device", engine.device,
                  "What this node's stages compute on: cpu, cuda (stage i on GPU i modulo their number), or auto (cuda "
                  "where there is a GPU)")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}))
      ->capture_default_str();
  serve.add_flag_callback(
      "--disable-cuda-graph", [&engine] { engine.cuda_graphs = false; },
      "On a GPU, launch the operations of decode steps one by one");
  serve
      .add_option("--cuda-products", engine.cuda_products,
                  "What multiplies matrices on a GPU: auto (wgmma where the GPU has it and it agrees with mma at the "
                  "start), wgmma (or not at all), mma")
      ->check(CLI::IsMember({"auto", "wgmma", "mma"}))
      ->capture_default_str();
  serve.add_flag("--divide-gpu", engine.divide_gpu,
                 "Stages of a node that share a GPU get equal parts of its multiprocessors, where driver and GPU can "
                 "divide them");
  serve
      .add_option("--nccl", engine.nccl,
                  "Activations to other nodes go from GPU to GPU: auto (where NCCL is on both nodes and connects; else "
                  "through the hosts), on (or not at all), off. The nodes' GPUs must differ")
      ->check(CLI::IsMember({"auto", "on", "off"}))
      ->capture_default_str();
  serve
      .add_option("--nccl-timeout", engine.nccl_timeout_s,
                  "Seconds that one transfer between GPUs of different nodes may take, the wait for the other node's "
                  "result included; the same on every node")
      ->check(number_range(0.001, 1e6))
      ->capture_default_str();
  serve
      .add_option("--cpu-isa", engine.cpu_isa,
                  "Instruction set of the CPU kernels. On node 0: of all nodes; auto: each node's own choice, its "
                  "best if it says nothing")
      ->check(CLI::IsMember(cpu::isa_choices()))
      ->capture_default_str();
  serve
      .add_option("--quantization", engine.quantization,
                  "On the CPU only. Weights of the layers and the output head: none (as stored), w8 (8 bits, with a "
                  "scale per 32), w8a8 (the same, and their inputs are rounded to 8 bits too), w8a8_int8 (8 bits with "
                  "one scale per channel, inputs with one per token: fastest with AMX), mxint8 (8 bits, scales "
                  "that are powers of two: faster than w8 for one sequence on AMX, less accurate)")
      ->check(CLI::IsMember({"none", "w8", "w8a8", "w8a8_int8", "mxint8"}))
      ->capture_default_str();
  serve.add_option("--threads", engine.threads, "Threads that compute, over all stages; 0: one per CPU")
      ->check(CLI::Range(0, 4096))
      ->capture_default_str();
  serve.add_flag("--pin-threads", engine.pin_threads,
                 "Each of them on a CPU of its own, of those that the process may use; for a machine that does nothing "
                 "else");
}

void add_pipeline_flags(CLI::App& serve, EngineOptions& engine) {
  serve.add_option("--pp-size", engine.pp_size, "Stages of the pipeline")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  serve
      .add_option("--pp-layer-partition", engine.layer_partition,
                  "Layers per stage: even (the remainder to later stages), auto (by cost measured at start on node "
                  "0), or by hand, as 15,15,15,16")
      ->capture_default_str();
  serve.add_option("--pp-async-batch-depth", engine.async_batch_depth, "Micro-batches in flight beyond one per stage")
      ->check(CLI::Range(0, 64))
      ->capture_default_str();
}

void add_cluster_flags(CLI::App& serve, ClusterOptions& cluster_options, RawFlags& raw) {
  serve.add_option("--nnodes", cluster_options.node_count, "Nodes (hosts or processes) that share the stages")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  serve.add_option("--node-rank", cluster_options.node_rank, "This node's number; 0 hosts the head and serves HTTP")
      ->check(CLI::Range(0, 1023))
      ->capture_default_str();
  serve.add_option("--dist-init-addr", raw.dist_init_addr,
                   "HOST:PORT where node 0 listens for the others (taken from the environment of torchrun, Slurm, "
                   "Open MPI or LeaderWorkerSet where it is not given)");
}

/// HOST:PORT, [HOST]:PORT.
std::optional<comm::TcpEndpoint> parse_endpoint(const std::string& text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0) return std::nullopt;
  std::string host = text.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  int port = 0;
  const auto [end, failure] = std::from_chars(text.data() + colon + 1, text.data() + text.size(), port);
  if (failure != std::errc() || end != text.data() + text.size() || port < 1 || port > 65535) return std::nullopt;
  return comm::TcpEndpoint{host, static_cast<uint16_t>(port)};
}

/// Completes the cluster options from the launcher's environment. Returns what is wrong with them; empty: nothing.
std::string complete_cluster_options(const CLI::App& serve, ClusterOptions& cluster_options,
                                     const std::string& dist_init_addr) {
  if (serve.count("--nnodes") == 0 && serve.count("--node-rank") == 0) {
    if (const auto found = find_launcher(std::getenv)) {
      cluster_options.node_count = found->node_count;
      cluster_options.node_rank = found->node_rank;
      if (found->head_host)
        cluster_options.address = {*found->head_host, found->head_port.value_or(kDefaultClusterPort)};
    }
  }
  if (!dist_init_addr.empty()) {
    const auto address = parse_endpoint(dist_init_addr);
    if (!address) return fmt::format("--dist-init-addr: '{}' is not HOST:PORT", dist_init_addr);
    cluster_options.address = *address;
  }
  if (cluster_options.node_rank >= cluster_options.node_count) {
    return fmt::format("--node-rank {}: wanted below --nnodes {}", cluster_options.node_rank,
                       cluster_options.node_count);
  }
  if (cluster_options.node_count > 1 && cluster_options.address.host.empty())
    return "--nnodes above 1 needs --dist-init-addr HOST:PORT";
  return {};
}

void add_scheduler_flags(CLI::App& serve, ServeFlags& flags) {
  EngineOptions& engine = flags.engine;
  serve.add_option("--chunked-prefill-size", engine.chunked_prefill_size, "Prompt tokens per micro-batch")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  serve
      .add_option("--chunking", engine.chunking,
                  "How prompts are cut: fixed (by tokens), balanced (by predicted time), published (by a prefill fit)")
      ->check(CLI::IsMember({"fixed", "published", "balanced"}))
      ->capture_default_str();
  serve.add_flag_callback(
      "--enable-dynamic-chunking", [&engine] { engine.chunking = "balanced"; },
      "Same as --chunking balanced; SGLang's flag of that name is --chunking published");
  serve.add_option("--dynamic-chunking-smoothing", engine.chunk_smoothing, "How far a chunk follows what is computed")
      ->check(number_range(0.0, 1.0))
      ->capture_default_str();
  serve
      .add_option("--schedule-policy", engine.schedule_policy,
                  "Order of the queue: fcfs, lpm (longest cached prefix), priority, shortest")
      ->check(CLI::IsMember({"fcfs", "lpm", "priority", "shortest"}))
      ->capture_default_str();
  serve.add_flag("--schedule-low-priority-values-first", flags.server.low_priority_first,
                 "With --schedule-policy priority, smaller values go first, as vLLM has it");
  serve.add_option("--queue-timeout", engine.queue_timeout_s, "Seconds that a request may wait for its start; 0: any")
      ->check(number_range(0.0, 1e6))
      ->capture_default_str();
  serve.add_option("--run-timeout", engine.run_timeout_s, "Seconds that a request may run; 0: any")
      ->check(number_range(0.0, 1e6))
      ->capture_default_str();
  serve.add_option("--max-running-requests", engine.max_running_requests, "Requests that run at once")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  serve.add_option("--max-queued-requests", engine.max_queued_requests, "Requests that may wait; beyond: 429")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  serve
      .add_option("--speculative-num-draft-tokens", engine.draft_tokens,
                  "Tokens that a step of a sequence may compute before they are drawn: those of a form that leaves no "
                  "choice, of a client's prediction, of --speculative-algorithm; 0: none")
      ->check(CLI::Range(0, 63))
      ->capture_default_str();
  serve
      .add_option("--speculative-algorithm", engine.draft_algorithm,
                  "ngram: tokens are also expected to follow as they did before in the same sequence. Answers do not "
                  "depend on it")
      ->transform(CLI::IsMember({"none", "ngram"}, CLI::ignore_case))
      ->capture_default_str();
  serve.add_option("--page-size", engine.page_size, "Tokens per page of the KV cache")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  serve
      .add_option("--max-total-tokens", engine.max_total_tokens, "Tokens that the KV cache holds (default: by memory)")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40));
  serve
      .add_option("--mem-fraction-static", engine.memory_fraction,
                  "Part of the memory available at start, beside weights and scratch, that the KV cache may take "
                  "(default: 0.9 on a GPU, 0.5 on the CPU)")
      ->check(number_range(0.001, 0.99));
  serve
      .add_option("--watchdog-timeout", engine.watchdog_timeout_s,
                  "Seconds that a micro-batch may take before the ring counts as broken")
      ->check(number_range(1.0, 86400.0))
      ->capture_default_str();
}

void add_cache_flags(CLI::App& serve, EngineOptions& engine) {
  StorageOptions& storage = engine.storage;
  serve.add_flag_callback(
      "--disable-radix-cache", [&engine] { engine.radix_cache = false; }, "Share no prefixes between requests");
  serve.add_flag("--enable-hierarchical-cache", engine.hierarchical_cache,
                 "Keep prefixes in host memory when they leave the device");
  serve.add_option("--hicache-ratio", engine.host_cache_ratio, "Host pages per device page")
      ->check(number_range(0.01, 1000.0))
      ->capture_default_str();
  serve.add_option("--hicache-size", engine.host_cache_gb, "GB of host pages per node, instead of --hicache-ratio")
      ->check(number_range(0.0, 1e6));
  serve
      .add_option("--hicache-write-policy", engine.write_policy,
                  "When pages go to the host: write_through, write_through_selective, write_back")
      ->check(CLI::IsMember({"write_through", "write_through_selective", "write_back"}))
      ->capture_default_str();
  serve.add_option("--hicache-storage-backend", storage.backend, "A store behind the host pages: file, redis")
      ->check(CLI::IsMember({"file", "redis"}));
  serve.add_option("--hicache-storage-path", storage.path, "file: the directory; may be shared");
  serve.add_option("--hicache-storage-size", storage.size_gb, "file: GB that one stage's pages may take")
      ->check(number_range(0.001, 1e6))
      ->capture_default_str();
  serve.add_option("--hicache-storage-address", storage.address,
                   "redis: HOST:PORT, rediss://HOST:PORT for TLS, or the path of a socket");
  serve.add_option("--hicache-storage-tls-ca", storage.tls.ca_file,
                   "rediss: file of the authorities to trust, instead of the system's");
  serve.add_option("--hicache-storage-tls-cert", storage.tls.certificate_file,
                   "rediss: file of the certificate to show to the server");
  serve.add_option("--hicache-storage-tls-key", storage.tls.key_file, "rediss: file of that certificate's key");
  serve.add_flag_callback(
      "--hicache-storage-tls-insecure", [&storage] { storage.tls.verify = false; },
      "rediss: encrypt, but do not check who answers");
  serve.add_option("--hicache-storage-user", storage.user, "redis: user")->envname("MILLRACE_STORAGE_USER");
  serve.add_option("--hicache-storage-password", storage.password, "redis: password")
      ->envname("MILLRACE_STORAGE_PASSWORD");
  serve.add_option("--hicache-storage-db", storage.db, "redis: number of the database")->check(CLI::Range(0, 1 << 20));
  serve.add_option("--hicache-storage-ttl", storage.ttl_s, "redis: seconds that an unused page lives; 0: any")
      ->check(number_range(0.0, 1e9));
  serve
      .add_option("--hicache-storage-prefetch-policy", engine.prefetch_policy,
                  "How long a request waits for its pages from the store: best_effort (not at all), wait_complete, "
                  "timeout")
      ->check(CLI::IsMember({"best_effort", "wait_complete", "timeout"}))
      ->capture_default_str();
  serve.add_option("--hicache-prefetch-timeout", engine.prefetch_timeout_s, "Seconds, for the policy timeout")
      ->check(number_range(0.001, 3600.0))
      ->capture_default_str();
}

/// What is wrong with the flags of the engine taken together, if anything.
std::string contradiction(const ServeFlags& flags) {
  const EngineOptions& engine = flags.engine;
  const StorageOptions& storage = engine.storage;
  if (flags.server.low_priority_first && engine.schedule_policy != "priority") {
    return "--schedule-low-priority-values-first needs --schedule-policy priority";
  }
  if (!engine.radix_cache && engine.hierarchical_cache) {
    return "--enable-hierarchical-cache and --disable-radix-cache exclude each other";
  }
  if (storage.enabled() && !engine.hierarchical_cache) {
    return "--hicache-storage-backend needs --enable-hierarchical-cache";
  }
  if (storage.backend == "file" && storage.path.empty()) {
    return "--hicache-storage-backend file needs --hicache-storage-path DIR";
  }
  if (storage.backend == "redis" && storage.address.empty()) {
    return "--hicache-storage-backend redis needs --hicache-storage-address HOST:PORT";
  }
  if (storage.backend == "redis") {
    if (const auto redis = redis_options(storage); redis.has_error()) return redis.error().message;
  }
  if (storage.tls != cache::TlsOptions{} && !storage.wants_tls()) {
    return "--hicache-storage-tls-… needs --hicache-storage-address rediss://HOST:PORT";
  }
  return {};
}

void add_server_flags(CLI::App& serve, ServeFlags& flags, RawFlags& raw) {
  server::ServerOptions& server = flags.server;
  serve.add_option("--host", server.host, "Address to listen on")->capture_default_str();
  serve.add_option("--port", server.port, "Port to listen on; 0: any free one")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str();
  // An empty key would leave open what was meant to be closed.
  const auto is_key = [](const std::string& text) { return std::string(text.empty() ? "the key is empty" : ""); };
  serve
      .add_option("--api-key", server.api_keys,
                  "Wanted from clients as 'Authorization: Bearer KEY'; may be given several times, for any of the keys")
      ->check(is_key)
      ->allow_extra_args(false)
      ->envname("MILLRACE_API_KEY");
  serve.add_option("--api-key-file", flags.api_key_file, "File of further keys, one per line");
  serve
      .add_option("--admin-api-key", server.admin_api_key,
                  "Opens every route; wanted for /flush_cache, /pause_generation, /continue_generation, "
                  "/start_profile, /stop_profile and abort_all")
      ->check(is_key)
      ->envname("MILLRACE_ADMIN_API_KEY");
  serve.add_flag("--metrics-public", server.metrics_public, "/metrics wants no key");
  serve.add_option("--profile-dir", server.profile_dir, "Folder that /start_profile writes traces to")
      ->capture_default_str();
  serve.add_option("--cors-origin", server.cors_origin, "Origin whose pages may call; empty: none")
      ->capture_default_str();
  serve.add_option("--drain-timeout", raw.drain_timeout_s, "Seconds that running requests get after SIGTERM")
      ->check(number_range(0.0, 86400.0))
      ->capture_default_str();
  serve.add_option("--random-seed", server.random_seed,
                   "What the seeds of requests without one are drawn from: the same requests in the same order get the "
                   "same answers after every start");
  serve.add_flag("--allow-request-chat-template", server.allow_request_chat_template,
                 "Let requests bring a chat template of their own");
  serve.add_option("--log-level", raw.log_level, "trace, debug, info, warn, error, off")
      ->check(CLI::IsMember({"trace", "debug", "info", "warn", "error", "off"}))
      ->capture_default_str();
  serve.add_flag("--log-json", flags.log_json, "Write the log as one JSON object per line");
}

/// The bounds of what a client may make grow, and for how long it may take.
void add_limit_flags(CLI::App& serve, server::ServerOptions& server, RawFlags& raw) {
  serve.add_option("--max-connections", server.max_connections, "Open connections; beyond: 503")
      ->check(CLI::Range(size_t{1}, size_t{1} << 20))
      ->capture_default_str();
  serve
      .add_option("--max-requests-in-flight", server.max_requests_in_flight,
                  "Requests that are being answered; beyond: 429")
      ->check(CLI::Range(size_t{1}, size_t{1} << 20))
      ->capture_default_str();
  serve.add_option("--max-choices", server.max_choices, "Prompts times n of one request; beyond: 400")
      ->check(CLI::Range(size_t{1}, size_t{65536}))
      ->capture_default_str();
  serve.add_option("--max-logprobs", server.max_logprobs, "Alternatives beside a token of logprobs; beyond: 400")
      ->check(CLI::Range(0, 1024))  // what the GPU's lists hold
      ->capture_default_str();
  serve.add_option("--max-body-mib", raw.max_body_mib, "Largest request body, MiB; beyond: 413")
      ->check(CLI::Range(size_t{1}, size_t{4096}))
      ->capture_default_str();
  serve
      .add_option("--max-bodies-mib", raw.max_bodies_mib,
                  "Request bodies of all connections together, MiB, without the first 64 KiB of each; beyond: 503")
      ->check(CLI::Range(size_t{1}, size_t{1} << 24))
      ->capture_default_str();
  serve.add_option("--max-header-kib", raw.max_header_kib, "Largest request header, KiB; beyond: 431")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  const auto seconds = [&serve](const char* name, double& value, const char* text) {
    serve.add_option(name, value, text)->check(number_range(0.01, 86400.0))->capture_default_str();
  };
  seconds("--header-timeout", raw.header_timeout_s, "Seconds for a request's header to arrive; beyond: 408");
  seconds("--body-timeout", raw.body_timeout_s, "Seconds for its body to arrive; beyond: 408");
  seconds("--idle-timeout", raw.idle_timeout_s, "Seconds that a connection may stay between requests");
  seconds("--write-timeout", raw.write_timeout_s, "Seconds that a client may take nothing of its answer");
  seconds("--comment-interval", raw.comment_interval_s, "Seconds until a stream without tokens gets a comment line");
}

std::chrono::milliseconds to_ms(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

void apply(const RawFlags& raw, ServeFlags& flags) {
  flags.drain_timeout = to_ms(raw.drain_timeout_s);
  flags.log_level = log::parse_level(raw.log_level).value();
  server::ServerOptions& server = flags.server;
  for (const std::string& name : raw.served_model_names) {
    if (server.served_model_name.empty()) {
      server.served_model_name = name;
    } else if (!name.empty()) {
      server.other_model_names.push_back(name);
    }
  }
  server.has_priorities = flags.engine.schedule_policy == "priority";
  server.max_body_bytes = raw.max_body_mib << 20;
  server.max_bodies_bytes = raw.max_bodies_mib << 20;
  server.max_header_bytes = raw.max_header_kib << 10;
  server.header_timeout = to_ms(raw.header_timeout_s);
  server.body_timeout = to_ms(raw.body_timeout_s);
  server.idle_timeout = to_ms(raw.idle_timeout_s);
  server.write_timeout = to_ms(raw.write_timeout_s);
  server.comment_interval = to_ms(raw.comment_interval_s);
}

EarlyExit explain(const CLI::App& app, const CLI::ParseError& failure) {
  if (failure.get_exit_code() != 0) return {2, std::string("millrace: ") + failure.what()};
  if (dynamic_cast<const CLI::CallForVersion*>(&failure) != nullptr) return {0, failure.what()};
  const auto subcommands = app.get_subcommands();
  const CLI::App* asked = subcommands.empty() ? &app : subcommands.front();
  return {0, asked->help(subcommands.empty() ? "" : app.get_name())};
}

}  // namespace

Command parse_command_line(int argc, char** argv) {
  ServeFlags flags;
  flags.server.served_model_name.clear();
  RawFlags raw;
  CLI::App app("A server for large language models that are cut by layers over several devices or hosts.", "millrace");
  app.set_version_flag("--version", std::string("millrace ") + MILLRACE_VERSION);
  app.require_subcommand(1);
  CLI::App& serve = *app.add_subcommand("serve", "Serve a model over the OpenAI-compatible API");
  serve.get_formatter()->column_width(36);
  add_model_flags(serve, flags, raw);
  add_conversation_flags(serve, flags);
  add_pipeline_flags(serve, flags.engine);
  add_cluster_flags(serve, flags.cluster, raw);
  add_scheduler_flags(serve, flags);
  add_cache_flags(serve, flags.engine);
  add_server_flags(serve, flags, raw);
  add_limit_flags(serve, flags.server, raw);
  const CLI::App& devices = *app.add_subcommand("devices", "Print what stages could compute on here");
  TraceFlags trace_flags;
  CLI::App& trace = *app.add_subcommand("trace", "Print where the bubbles of a recorded profile are, and their causes");
  trace.add_option("FILE", trace_flags.file, "Written between /start_profile and /stop_profile")->required();
  QuantizeFlags quantization;
  CLI::App& quantize = *app.add_subcommand("quantize", "Write a model with weights of 8 bits, as serve takes it");
  quantize.add_option("--model-path", quantization.model_path, "Folder of the model")->required();
  quantize.add_option("--output", quantization.output, "Folder to write: a new one, or an empty one")->required();
  quantize
      .add_option(
          "--quantization", quantization.quantization,
          "w8 (a scale per 32), mxint8 (powers of two), w8a8_int8 (one per channel; in the form of compressed-tensors)")
      ->check(CLI::IsMember({"w8", "mxint8", "w8a8_int8"}))
      ->capture_default_str();
  SimulateFlags simulation;
  CLI::App& simulate = *app.add_subcommand("simulate", "Run a workload over a described cluster in virtual time");
  simulate.get_formatter()->column_width(36);
  add_simulate_flags(simulate, simulation);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& failure) {
    return explain(app, failure);
  }
  if (devices.parsed()) return DevicesFlags{};
  if (trace.parsed()) return trace_flags;
  if (simulate.parsed()) return simulation;
  if (quantize.parsed()) return quantization;
  const std::string misplaced = complete_cluster_options(serve, flags.cluster, raw.dist_init_addr);
  if (!misplaced.empty()) return EarlyExit{2, "millrace: " + misplaced};
  const std::string wrong = contradiction(flags);
  if (!wrong.empty()) return EarlyExit{2, "millrace: " + wrong};
  apply(raw, flags);
  return flags;
}

}  // namespace millrace::app
