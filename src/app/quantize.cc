#include "app/quantize.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <optional>

#include "app/sample_prompts.h"
#include "base/json.h"
#include "base/text_file.h"
#include "cpu/cpu_backend.h"
#include "model/families/read_config.h"
#include "model/quantize/output_error.h"
#include "model/quantize/quantize_checkpoint.h"

namespace millrace::app {
namespace {

using Prompts = std::vector<std::vector<TokenId>>;

constexpr size_t kPromptTokens = 512;
constexpr size_t kMaxTokens = size_t{64} * kPromptTokens;

/// What outputs are compared on, or why they are not.
struct Task {
  Prompts prompts;
  std::string reason;  ///< empty: there are prompts
};

Result<Prompts> read_prompts(const std::string& file, const text::Tokenizer& tokenizer, size_t length) {
  Prompts prompts;
  if (file.empty()) {
    for (const std::string_view text : sample_prompts()) {
      std::vector<TokenId> tokens = tokenizer.encode(text, true);
      if (tokens.size() > length) tokens.resize(length);
      if (!tokens.empty()) prompts.push_back(std::move(tokens));
    }
    return prompts;
  }
  const auto text = read_text_file(file);
  if (text.has_error()) return text.error();
  // What a text begins with is what the encoding of "a" has before it.
  const std::vector<TokenId> plain = tokenizer.encode("a", false);
  std::vector<TokenId> start = tokenizer.encode("a", true);
  const auto found = std::ranges::search(start, plain).begin();
  start.erase(found, start.end());
  prompts = cut_prompts(tokenizer.encode(*text, false), start, length, kMaxTokens);
  if (prompts.empty()) return make_error(ErrorCode::kData, "--prompts {}: is empty, wanted a text", file);
  return prompts;
}

Result<Task> prepare(const QuantizeFlags& flags) {
  if (flags.prompts == kNoPrompts) return Task{.prompts = {}, .reason = "--prompts is none"};
  const auto config = model::read_config(flags.model_path);
  if (config.has_error()) return config.error();
  if (config->encoder || !config->has_output_head) return Task{.prompts = {}, .reason = "the model has no output head"};
  const auto tokenizer = text::Tokenizer::load(flags.model_path);
  if (tokenizer.has_error()) {
    if (tokenizer.error().code == ErrorCode::kNotFound && flags.prompts.empty())
      return Task{.prompts = {}, .reason = "the folder has no tokenizer.json, tekken.json or tiktoken.model"};
    return tokenizer.error();
  }
  const size_t length = std::min(kPromptTokens, static_cast<size_t>(config->context_length()));
  auto prompts = read_prompts(flags.prompts, **tokenizer, length);
  if (prompts.has_error()) return prompts.error();
  return Task{.prompts = std::move(*prompts), .reason = {}};
}

std::string describe(const model::OutputError& error) {
  return fmt::format(
      "error of the outputs: KL {:.5f} nats on average, at most {:.4f} (prompt {}, token {}); the most probable token "
      "agrees at {:.2f} % of {} positions\n",
      error.mean_kl, error.max_kl, error.max_prompt + 1, error.max_position + 1,
      100.0 * static_cast<double>(error.agreeing) / static_cast<double>(error.positions), error.positions);
}

Result<void> write_report(const std::filesystem::path& path, const model::QuantizeReport& report,
                          const std::optional<model::OutputError>& error) {
  std::string text;
  JsonWriter json(text);
  json.begin_object().member("bytes_before", report.bytes_before).member("bytes_after", report.bytes_after);
  json.member("error", report.error).key("tensors").begin_array();
  for (const model::TensorError& each : report.tensor_errors)
    json.begin_object().member("name", each.tensor).member("error", each.error).end_object();
  json.end_array().key("outputs");
  if (error) {
    json.begin_object().member("positions", error->positions).member("agreeing", error->agreeing);
    json.member("mean_kl", error->mean_kl).member("max_kl", error->max_kl);
    json.member("max_kl_prompt", error->max_prompt).member("max_kl_position", error->max_position).end_object();
  } else {
    json.null();
  }
  json.end_object();
  std::ofstream file(path, std::ios::binary);
  file << text << '\n';
  file.close();
  if (!file) return make_error(ErrorCode::kInternal, "--report {}: cannot be written", path.string());
  return {};
}

}  // namespace

Prompts cut_prompts(const std::vector<TokenId>& tokens, const std::vector<TokenId>& start, size_t length,
                    size_t max_tokens) {
  const size_t own = length > start.size() ? length - start.size() : 1;
  const size_t end = std::min(tokens.size(), max_tokens);
  Prompts prompts;
  for (size_t first = 0; first < end; first += own) {
    std::vector<TokenId>& prompt = prompts.emplace_back(start);
    const auto begin = tokens.begin() + static_cast<std::ptrdiff_t>(first);
    prompt.insert(prompt.end(), begin, begin + static_cast<std::ptrdiff_t>(std::min(own, end - first)));
  }
  return prompts;
}

Result<std::string> quantize(const QuantizeFlags& flags) {
  const auto task = prepare(flags);
  if (task.has_error()) return task.error();
  const auto report = model::quantize_checkpoint(flags.model_path, flags.output, flags.quantization);
  if (report.has_error()) return report.error();
  std::string text =
      fmt::format("{}: {} tensors in {} bits, {:.1f} MB instead of {:.1f}\n", flags.output.string(), report->tensors,
                  flags.quantization == model::Quantization::kW4 ? 4 : 8,
                  static_cast<double>(report->bytes_after) / 1e6, static_cast<double>(report->bytes_before) / 1e6);
  text += fmt::format("error of the weights: {:.2f} %, at most {:.2f} % ({})\n", 100 * report->error,
                      100 * report->worst_error, report->worst_tensor);
  std::optional<model::OutputError> outputs;
  if (task->prompts.empty()) {
    text += fmt::format("outputs are not compared: {}\n", task->reason);
  } else {
    const auto backend = cpu::make_backend({});
    const auto error = model::measure_output_error(flags.model_path, flags.output, task->prompts, *backend);
    if (error.has_error()) return error.error();
    outputs = *error;
    text += describe(*error);
  }
  if (!flags.report.empty()) RETURN_IF_ERROR(write_report(flags.report, *report, outputs));
  return text;
}

}  // namespace millrace::app
