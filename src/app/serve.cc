#include "app/serve.h"

#include <sys/resource.h>

#include <algorithm>
#include <sstream>

#include "app/devices.h"
#include "app/local_rings.h"
#include "app/model_texts.h"
#include "app/ring_node.h"
#include "app/signals.h"
#include "app/worker.h"
#include "base/text_file.h"
#include "cluster/node_reports.h"
#include "model/families/read_config.h"
#include "model/fingerprint.h"
#include "model/generation_config.h"
#include "sched/head/engine_status.h"
#include "sched/head/ring_set.h"
#include "server/server.h"
#include "text/chat_template/chat_template.h"
#include "text/tokenizer/tokenizer.h"

namespace millrace::app {
namespace {

using namespace std::chrono_literals;
/// Time for clients to receive the errors of requests that a lost device has ended.
constexpr auto kStopTimeout = 1s;
using ChatTemplatePtr = std::shared_ptr<const text::ChatTemplate>;
using SpecialTokens = text::ChatTemplate::SpecialTokens;

/// Returns the template in the file of --chat-template.
Result<ChatTemplatePtr> load_chat_template(const std::string& path, const SpecialTokens& tokens) {
  const auto source = read_text_file(path);
  if (source.has_error()) return make_error(ErrorCode::kInvalidArgument, "--chat-template {}", source.error().message);
  if (source->empty()) return make_error(ErrorCode::kInvalidArgument, "--chat-template {}: the file is empty", path);
  auto given = text::ChatTemplate::with_tokens(*source, tokens);
  if (given.has_error()) return make_error(given.error().code, "--chat-template {}: {}", path, given.error().message);
  return given;
}

/// Reads the model's texts, with the template of --chat-template in place of its own.
Result<ModelTexts> load_texts(const ServeFlags& flags) {
  auto texts = load_model_texts(flags.engine.model_path, flags.chat_template.empty());
  if (texts.has_error() || flags.chat_template.empty()) return texts;
  auto given = load_chat_template(flags.chat_template, texts->special_tokens);
  if (given.has_error()) return given.error();
  texts->chat_template = std::move(*given);
  return texts;
}

Result<server::GenerationDefaults> generation_defaults(const ServeFlags& flags, const model::ModelConfig& config,
                                                       const text::Tokenizer& tokenizer) {
  auto suggested = model::read_generation_config(flags.engine.model_path);
  if (suggested.has_error()) return suggested.error();
  if (!flags.generation_config.empty()) {
    RETURN_IF_ERROR(
        model::override_generation_config(*suggested, flags.generation_config, "--override-generation-config"));
  }
  server::GenerationDefaults defaults;
  defaults.temperature = suggested->temperature.value_or(defaults.temperature);
  defaults.top_p = suggested->top_p.value_or(defaults.top_p);
  defaults.min_p = suggested->min_p.value_or(defaults.min_p);
  defaults.top_k = suggested->top_k.value_or(defaults.top_k);
  defaults.repetition_penalty = suggested->repetition_penalty.value_or(defaults.repetition_penalty);
  defaults.eos_token_ids = suggested->eos_token_ids.empty() ? config.eos_token_ids : suggested->eos_token_ids;
  // What ends a turn is often known to the tokenizer alone.
  if (tokenizer.eos_id()) defaults.eos_token_ids.push_back(*tokenizer.eos_id());
  return defaults;
}

/// Returns the engine's options for what the server does with the model.
EngineOptions engine_options(EngineOptions options, const PoolingSetup& pooling, const model::ModelConfig& config) {
  options.stage.has_output_head = pooling.has_output_head;
  const bool is_bounded = options.context_length == 0 && pooling.max_sequence_length > 0;
  if (is_bounded) options.context_length = std::min(pooling.max_sequence_length, config.context_length());
  return options;
}

/// Returns the keys of --api-key-file, without the white space around them.
Result<std::vector<std::string>> read_api_keys(const std::string& path) {
  const auto text = read_text_file(path);
  if (text.has_error()) return make_error(ErrorCode::kInvalidArgument, "--api-key-file {}", text.error().message);
  constexpr std::string_view kWhitespace = " \t\r";
  std::vector<std::string> keys;
  std::istringstream lines(*text);
  for (std::string line; std::getline(lines, line);) {
    const size_t begin = line.find_first_not_of(kWhitespace);
    if (begin != std::string::npos) keys.push_back(line.substr(begin, line.find_last_not_of(kWhitespace) + 1 - begin));
  }
  if (keys.empty()) return make_error(ErrorCode::kInvalidArgument, "--api-key-file {}: there is no key in it", path);
  return keys;
}

/// Writes the nodes of each ring. With several rings, each node says its ring.
void write_nodes(JsonWriter& json, const std::vector<std::vector<cluster::NodeInfo>>& rings) {
  json.key("nodes").begin_array();
  for (size_t ring = 0; ring < rings.size(); ++ring) {
    for (const cluster::NodeInfo& node : rings[ring]) {
      json.begin_object();
      if (rings.size() > 1) json.member("ring", ring);
      json.member("rank", node.rank).member("first_stage", node.first_stage);
      json.member("stage_count", node.stage_count).member("first_rank", node.first_rank);
      json.member("rank_count", node.rank_count).member("compute", node.compute).end_object();
    }
  }
  json.end_array();
}

/// Returns the fingerprint of what the tokens spell and of those that end an output, which rings must agree about.
model::Fingerprint vocabulary_fingerprint(const text::Tokenizer& tokenizer, std::vector<TokenId> stop_tokens) {
  std::vector<std::string> texts;
  for (size_t id = 0; id < tokenizer.vocab_size(); ++id) {
    const auto token = static_cast<TokenId>(id);
    texts.push_back((tokenizer.is_special(token) ? "special " : "plain ") + std::string(tokenizer.id_to_token(token)));
  }
  std::ranges::sort(stop_tokens);
  for (const TokenId token : stop_tokens) texts.push_back(fmt::format("stop {}", token));
  return model::fingerprint(texts);
}

/// Raises the limit of descriptors: each connection takes one, and so do links and files.
void raise_descriptor_limit(size_t max_connections) {
  constexpr rlim_t kOtherDescriptors = 256;
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  (void)setrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_max >= max_connections + kOtherDescriptors) return;
  log::warn("--max-connections {} is more than {} descriptors allow: raise ulimit -Hn or lower the flag",
            max_connections, limit.rlim_max);
}

/// Returns whether a ring is paused.
bool is_paused(sched::Engine& engine) {
  sched::RingSet* rings = engine.rings();
  if (rings == nullptr) return engine.status().paused;
  for (size_t ring = 0; ring < rings->size(); ++ring) {
    if (rings->report(ring).status.paused) return true;
  }
  return false;
}

/// Starts the engine once the front is up, and serves until a signal.
Result<void> run(LocalRings& engine, server::Server& front, Signals& signals, const ServeFlags& flags,
                 const std::string& model, std::stop_source& interruption) {
  signals.on_first([&interruption] { interruption.request_stop(); });
  const auto port = front.start(interruption.get_token());
  if (port.has_error()) {
    signals.on_first({});
    return port.error().code == ErrorCode::kAborted ? Result<void>() : port.error();
  }
  const std::string& host = flags.server.http.host;
  const bool is_ipv6 = host.find(':') != std::string::npos;
  log::info("listening on http://{}:{} (model '{}')", is_ipv6 ? '[' + host + ']' : host, *port, model);
  signals.on_first([&engine, &interruption] {
    interruption.request_stop();
    engine.interrupt();
  });
  const auto started = engine.start();
  signals.on_first({});
  if (started.has_error() && started.error().code != ErrorCode::kAborted) {
    front.stop({});
    return started;
  }
  bool ready = false;
  while (!ready && !signals.wait_for(1ms)) ready = engine.engine().status().ready;
  if (ready) log::info("ready");
  const int received = signals.wait();
  if (const auto reason = lost_device()) {
    front.stop(kStopTimeout);
    return Error{ErrorCode::kUnavailable, *reason};
  }
  log::info("{}: draining for up to {} s", signal_name(received),
            static_cast<double>(flags.drain_timeout.count()) / 1000);
  const bool can_end = flags.drain_timeout > 0ms;
  if (can_end && is_paused(engine.engine()) && engine.engine().resume()) {
    log::info("generation was paused: resuming, so that running requests can end");
  }
  front.stop(flags.drain_timeout);
  return {};
}

}  // namespace

Result<void> serve(const ServeFlags& given) {
  std::stop_source interruption;
  const WeightScope scope = given.cluster.node_count > 1 ? WeightScope::kOwnTensors : WeightScope::kWhole;
  const auto source = locate_model(given.model, scope, interruption.get_token());
  if (source.has_error()) return source.error();
  ServeFlags flags = given;
  flags.engine.model_path = source->folder;
  flags.engine.weights_path = source->weights_folder;
  flags.engine.weight_ranges = source->ranges;
  const std::filesystem::path& folder = source->folder;
  const auto config = model::read_config(folder);
  if (config.has_error()) return config.error();
  if (flags.cluster.node_rank > 0) return run_worker(flags, interruption);
  Signals signals;
  raise_descriptor_limit(flags.server.http.max_connections);
  auto texts = load_texts(flags);
  if (texts.has_error()) return texts.error();
  const text::Tokenizer& tokenizer = *texts->tokenizer;
  auto defaults = generation_defaults(flags, *config, tokenizer);
  if (defaults.has_error()) return defaults.error();
  auto pooling =
      set_up_pooling(flags.pooling, folder, *config, tokenizer, [&flags] { return open_checkpoint(flags.engine); });
  if (pooling.has_error()) return pooling.error();
  const bool has_remote_rings = !flags.cluster.rings.front.host.empty();
  const model::Fingerprint vocabulary =
      has_remote_rings ? vocabulary_fingerprint(tokenizer, defaults->eos_token_ids) : model::Fingerprint{};
  auto engine = LocalRings::create(engine_options(flags.engine, *pooling, *config), flags.cluster,
                                   tokenizer.vocab_size(), vocabulary);
  if (engine.has_error()) return engine.error();

  server::Service service;
  service.engine = &(*engine)->engine();
  service.tokenizer = texts->tokenizer;
  service.defaults = std::move(*defaults);
  service.chat_template = std::move(texts->chat_template);
  service.special_tokens = std::move(texts->special_tokens);
  service.pooling = std::move(pooling->pooling);
  server::ServerOptions options = flags.server;
  if (options.served_model_name.empty()) options.served_model_name = source->name;
  if (flags.cluster.rings.number) {
    return serve_to_front(**engine, service, signals, flags);
  }
  if (!flags.api_key_file.empty()) {
    const auto keys = read_api_keys(flags.api_key_file);
    if (keys.has_error()) return keys.error();
    options.api_keys.insert(options.api_keys.end(), keys->begin(), keys->end());
  }
  service.extra_metrics = [rings = engine->get()](std::string& out) { rings->append_metrics(out); };
  service.extra_info = [rings = engine->get()](JsonWriter& json) { write_nodes(json, rings->nodes()); };
  {
    server::Server front(options, std::move(service));
    RETURN_IF_ERROR(run(**engine, front, signals, flags, options.served_model_name, interruption));
  }
  engine->reset();
  log::info("stopped");
  return {};
}

}  // namespace millrace::app
