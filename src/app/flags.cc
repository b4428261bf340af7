#include "app/flags.h"

#include "app/flag_types.h"
#include "app/help_formatter.h"
#include "app/serve_flags.h"

namespace millrace::app {
namespace {

void add_serve_flags(CLI::App& serve, ServeFlags& flags, UnresolvedFlags& unresolved) {
  add_model_flags(serve, flags, unresolved);
  add_device_flags(serve, flags);
  add_ring_flags(serve, flags, unresolved);
  add_scheduler_flags(serve, flags);
  add_cache_flags(serve, flags);
  add_server_flags(serve, flags);
  add_limit_flags(serve, flags);
  add_operation_flags(serve, flags);
}

/// The name of 4-bit weights in a checkpoint, whose inputs other servers leave at 16 bits.
constexpr std::string_view kW4A16 = "w4a16";

void add_quantize_flags(CLI::App& quantize, QuantizeFlags& flags) {
  quantize.add_option("--model-path", flags.model_path, "Reads the model in this folder.")
      ->required()
      ->type_name("DIR");
  quantize.add_option("--output", flags.output, "Writes to this folder, which is new or empty.")
      ->required()
      ->type_name("DIR");
  add_name(
      quantize, "--quantization,--to", {"w8", "mxint8", "w8a8_int8", std::string(kW4A16)},
      [&flags](const std::string& name) {
        flags.quantization = name == kW4A16 ? model::Quantization::kW4 : *parse_enum<model::Quantization>(name);
      },
      "Selects the format: w8 (a scale per 32 weights), mxint8 (scales that are powers of two), w8a8_int8 (a scale per "
      "channel, as compressed-tensors stores it), w4a16 (4 bits, a scale per 32 weights, as compressed-tensors stores "
      "it).")
      ->default_str(std::string(enum_name(flags.quantization)));
  quantize
      .add_option("--prompts", flags.prompts,
                  "Compares the outputs of both models on this text instead of the one that ships; none compares none.")
      ->type_name("FILE");
  quantize
      .add_option("--report", flags.report, "Writes the errors of all tensors and of the outputs to this JSON file.")
      ->type_name("FILE");
}

void add_fetch_flags(CLI::App& fetch, FetchFlags& flags) {
  fetch.add_option("MODEL", flags.model.model, "Downloads this model: ORG/NAME, ORG/NAME:REVISION or ORG/NAME:GGUF.")
      ->required()
      ->type_name("");
  add_hub_flags(fetch, flags.model);
}

/// Completes the flags of `serve` once all are parsed. Returns what is wrong with them together, or nothing.
std::string resolve(const CLI::App& serve, const UnresolvedFlags& unresolved, ServeFlags& flags) {
  std::string wrong = resolve_cluster(serve, unresolved.dist_init_addr, flags.cluster);
  if (wrong.empty()) wrong = resolve_rings(unresolved, flags);
  if (wrong.empty()) wrong = ring_contradiction(flags);
  if (wrong.empty()) wrong = scheduler_contradiction(flags);
  if (wrong.empty()) wrong = cache_contradiction(flags);
  server::ServerOptions& server = flags.server;
  for (const std::string& name : unresolved.served_model_names) {
    if (server.served_model_name.empty()) {
      server.served_model_name = name;
    } else if (!name.empty()) {
      server.other_model_names.push_back(name);
    }
  }
  server.has_priorities = flags.engine.head.scheduler.policy == sched::QueuePolicy::kPriority;
  return wrong;
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
  CLI::App app("A server for large language models that are cut by layers over several devices or hosts.", "millrace");
  app.formatter(std::make_shared<HelpFormatter>());
  app.set_version_flag("--version", std::string("millrace ") + MILLRACE_VERSION);
  app.require_subcommand(1);
  ServeFlags flags;
  flags.server.served_model_name.clear();
  UnresolvedFlags unresolved;
  CLI::App& serve = *app.add_subcommand("serve", "Serve a model over the OpenAI-compatible API");
  add_serve_flags(serve, flags, unresolved);
  const CLI::App& devices = *app.add_subcommand("devices", "Print the devices that stages can use on this host");
  TraceFlags trace_flags;
  CLI::App& trace = *app.add_subcommand("trace", "Print where the bubbles of a recorded profile are, and their causes");
  trace.add_option("FILE", trace_flags.file, "Download the trace of the last profile")->required();
  QuantizeFlags quantization;
  CLI::App& quantize = *app.add_subcommand("quantize", "Write a model with weights of 8 or 4 bits, for serve");
  add_quantize_flags(quantize, quantization);
  FetchFlags fetched;
  CLI::App& fetch = *app.add_subcommand("fetch", "Download a model from a hub, and print its folder");
  add_fetch_flags(fetch, fetched);
  ListFlags listed;
  CLI::App& list = *app.add_subcommand("ls", "List the models that were downloaded");
  add_download_dir_flag(list, listed.model);
  SimulateFlags simulation;
  CLI::App& simulate = *app.add_subcommand("simulate", "Run a workload over a described cluster in virtual time");
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
  if (fetch.parsed()) return fetched;
  if (list.parsed()) return listed;
  const std::string wrong = resolve(serve, unresolved, flags);
  if (!wrong.empty()) return EarlyExit{.code = 2, .message = "millrace: " + wrong};
  return flags;
}

}  // namespace millrace::app
