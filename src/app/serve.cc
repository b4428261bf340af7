#include "app/serve.h"

#include <csignal>
#include <ctime>
#include <fstream>
#include <sstream>
#include <thread>

#include "base/json.h"
#include "model/generation_config.h"
#include "server/server.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace millrace::app {
namespace {

using namespace std::chrono_literals;
using ChatTemplatePtr = std::shared_ptr<const text::ChatTemplate>;

Result<std::string> read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream content;
  content << file.rdbuf();
  if (!file) return make_error(ErrorCode::kNotFound, "{}: cannot be read", path.string());
  return std::move(content).str();
}

/// The template of --chat-template, or the model's own; null when the model has none.
Result<ChatTemplatePtr> load_chat_template(const ServeFlags& flags) {
  const std::filesystem::path& folder = flags.engine.model_path;
  if (!flags.chat_template.empty()) {
    const auto source = read_file(flags.chat_template);
    if (source.has_error()) return make_error(ErrorCode::kInvalidArgument, "--chat-template {}", source.error().message);
    const auto config = read_file(folder / "tokenizer_config.json");
    return text::ChatTemplate::from_source(*source, config.has_value() ? *config : std::string());
  }
  auto own = text::ChatTemplate::load(folder);
  if (own.has_error() && own.error().code == ErrorCode::kNotFound) return ChatTemplatePtr();
  return own;
}

std::string messages_json(const server::openai::Conversation& conversation) {
  std::string json;
  JsonWriter writer(json);
  writer.begin_array();
  for (const auto& message : conversation.messages) {
    writer.begin_object().member("role", message.role).member("content", message.content);
    if (!message.name.empty()) writer.member("name", message.name);
    writer.end_object();
  }
  writer.end_array();
  return json;
}

Result<std::string> render_chat(const ChatTemplatePtr& own, const std::string& tokenizer_config,
                                const server::openai::Conversation& conversation) {
  ChatTemplatePtr chosen = own;
  if (!conversation.chat_template.empty()) {
    auto compiled = text::ChatTemplate::from_source(conversation.chat_template, tokenizer_config);
    if (compiled.has_error()) return Error{ErrorCode::kInvalidArgument, compiled.error().message};
    chosen = std::move(*compiled);
  }
  if (!chosen) return Error{ErrorCode::kInvalidArgument, "the model has no chat template: give one by --chat-template"};
  const std::string messages = messages_json(conversation);
  text::ChatInput input;
  input.messages_json = messages;
  input.kwargs_json = conversation.chat_template_kwargs;
  input.add_generation_prompt = conversation.add_generation_prompt;
  input.continue_final_message = conversation.continue_final_message;
  const std::time_t now = std::time(nullptr);
  localtime_r(&now, &input.now);
  return chosen->render(input);
}

Result<server::GenerationDefaults> generation_defaults(const std::filesystem::path& folder,
                                                       const model::ModelConfig& config) {
  const auto suggested = model::read_generation_config(folder);
  if (suggested.has_error()) return suggested.error();
  server::GenerationDefaults defaults;
  defaults.temperature = suggested->temperature.value_or(defaults.temperature);
  defaults.top_p = suggested->top_p.value_or(defaults.top_p);
  defaults.min_p = suggested->min_p.value_or(defaults.min_p);
  defaults.top_k = suggested->top_k.value_or(defaults.top_k);
  defaults.repetition_penalty = suggested->repetition_penalty.value_or(defaults.repetition_penalty);
  defaults.eos_token_ids = suggested->eos_token_ids.empty() ? config.eos_token_ids : suggested->eos_token_ids;
  return defaults;
}

std::string model_name(const ServeFlags& flags) {
  if (!flags.server.served_model_name.empty()) return flags.server.served_model_name;
  const auto path = std::filesystem::absolute(flags.engine.model_path).lexically_normal();
  return (path.has_filename() ? path : path.parent_path()).filename().string();
}

/// Blocks SIGTERM and SIGINT in this thread and those it starts; one thread waits for them.
sigset_t block_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
  return signals;
}

int wait_for_signal(const sigset_t& signals) {
  int received = 0;
  sigwait(&signals, &received);
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
  return received;
}

void wait_until_ready(const sched::Engine& engine) {
  while (!engine.status().ready) std::this_thread::sleep_for(1ms);
}

}  // namespace

Result<void> serve(const ServeFlags& flags) {
  const std::filesystem::path& folder = flags.engine.model_path;
  if (!std::filesystem::is_directory(folder)) {
    return make_error(ErrorCode::kNotFound, "--model-path {}: there is no such folder", folder.string());
  }
  const sigset_t signals = block_signals();
  auto tokenizer = text::Tokenizer::load(folder);
  if (tokenizer.has_error()) return tokenizer.error();
  auto chat_template = load_chat_template(flags);
  if (chat_template.has_error()) return chat_template.error();
  auto engine = LocalEngine::create(flags.engine, (*tokenizer)->vocab_size());
  if (engine.has_error()) return engine.error();
  auto defaults = generation_defaults(folder, (*engine)->config());
  if (defaults.has_error()) return defaults.error();

  server::Service service;
  service.engine = &(*engine)->engine();
  service.tokenizer = *tokenizer;
  service.defaults = std::move(*defaults);
  const auto config_text = read_file(folder / "tokenizer_config.json");
  service.render_chat = [own = *chat_template, config = config_text.has_value() ? *config_text : std::string()](
                            const server::openai::Conversation& conversation) {
    return render_chat(own, config, conversation);
  };
  server::ServerOptions options = flags.server;
  options.served_model_name = model_name(flags);
  server::Server front(options, std::move(service));
  const auto port = front.start();
  if (port.has_error()) return port.error();
  wait_until_ready((*engine)->engine());
  log::info("listening on http://{}:{} (model '{}')", options.host, *port, options.served_model_name);

  const int received = wait_for_signal(signals);
  log::info("{}: draining for up to {} s", received == SIGINT ? "SIGINT" : "SIGTERM",
            static_cast<double>(flags.drain_timeout.count()) / 1000);
  front.stop(flags.drain_timeout);
  engine->reset();
  log::info("stopped");
  return {};
}

}  // namespace millrace::app
