// A whole model on one stage, through the engine and without a server: decode steps of several sequences at one
// context, and prompts in chunks, next to what bounds them on the same device in the same run. Loaded in several ways
// (--quantization, --cpu-isa, --tp-size) the models take turns.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>

#include "app/devices.h"
#include "app/flag_types.h"
#include "base/log.h"
#include "cpu/cpu_backend.h"
#include "cpu/isa.h"
#include "device_ceilings.h"
#include "local_clients.h"
#include "model/families/read_config.h"
#include "model_work.h"

using namespace millrace;

namespace {

struct Options {
  app::EngineOptions engine;
  std::vector<std::string> cpu_isas = {"auto"};
  std::vector<std::string> quantizations = {"none"};
  std::vector<int32_t> tp_sizes = {1};
  std::vector<uint32_t> decode = {1, 64, 256};
  uint32_t context = 1024;
  uint32_t output = 64;
  std::vector<uint32_t> prefill = {2048, 8192, 32768};
  uint32_t prefix = 0;
  uint32_t rounds = 5;
};

/// The result of one round of a load, per second.
struct Figure {
  double tokens = 0;
  std::optional<double> bytes;  ///< read
  double operations = 0;
};

double seconds_between(bench::Reply::Clock::time_point begin, bench::Reply::Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

/// Returns the figure of the steps in which every sequence decodes: from the last one's first token to the first one's
/// last.
Figure decode_figure(const std::vector<bench::Reply>& replies, uint32_t prompt, const bench::ModelWork& work) {
  auto begin = replies.front().times.front();
  auto end = replies.front().times.back();
  for (const bench::Reply& reply : replies) {
    begin = std::max(begin, reply.times.front());
    end = std::min(end, reply.times.back());
  }
  double tokens = 0;
  double kv_bytes = 0;
  double operations = 0;
  for (const bench::Reply& reply : replies) {
    for (size_t at = 0; at < reply.times.size(); ++at) {
      if (reply.times[at] <= begin || reply.times[at] > end) continue;
      const double keys = prompt + static_cast<double>(at);
      tokens += 1;
      kv_bytes += work.kv_bytes(keys);
      operations += work.drawn_operations(keys);
    }
  }
  const double steps = tokens / static_cast<double>(replies.size());
  constexpr double kMinSteps = 4;
  if (steps < kMinSteps) {
    throw std::runtime_error("the sequences decode together for too few steps: --output-len wants to be larger");
  }
  const double seconds = seconds_between(begin, end);
  Figure figure{.tokens = tokens / seconds, .bytes = {}, .operations = operations / seconds};
  if (work.reads_all()) figure.bytes = (steps * work.weight_bytes() + kv_bytes) / seconds;
  return figure;
}

template <class T>
T value_or_throw(Result<T> result) {
  if (result.has_error()) throw ErrorException(result.error());
  return std::move(*result);
}

/// The model in one weight format for one instruction set, on some ranks.
struct Variant {
  std::string way;
  bench::ModelWork work;
  std::unique_ptr<app::LocalEngine> engine;
};

Variant make_variant(app::EngineOptions options, const std::string& quantization) {
  model::ModelConfig config = value_or_throw(model::read_config(options.model_path));
  const auto wanted = value_or_throw(model::parse_quantization(quantization));
  config.quantization = value_or_throw(model::resolve_quantization(config.quantization, wanted));
  options.stage.quantization = wanted;
  std::string way(model::to_string(config.quantization));
  if (options.stage.isa) way += fmt::format(" on {}", enum_name(*options.stage.isa));
  if (options.tp_size > 1) way += fmt::format(" on {} ranks", options.tp_size);
  bench::ModelWork work(config);
  const uint64_t before = cpu::packed_bytes();
  auto engine = bench::start_engine(options);
  const uint64_t packed = cpu::packed_bytes() - before;  // on a CPU the weights of all products
  if (packed > 0) work.set_weight_bytes(static_cast<double>(packed));
  return {std::move(way), work, std::move(engine)};
}

/// The results of all rounds of one load.
struct Figures {
  std::vector<double> tokens, times, bytes, byte_shares, operations, operation_shares;
};

class Measurement {
 public:
  explicit Measurement(const Options& options);
  void run();

 private:
  /// Measures rounds of a load, each after the device's ceilings.
  template <class Round>
  void measure(const std::string& load, const Round& round);
  void add(const Figure& figure, double first_tokens, const bench::DeviceCeilings& ceilings, Figures& figures);
  void decode(uint32_t count);
  void prefill(uint32_t tokens);

  const Options options_;
  const bool gpu_;
  std::vector<Variant> variants_;
  uint64_t next_seed_ = 1;
  std::vector<double> byte_ceilings_;       // GB/s, of all rounds
  std::vector<double> operation_ceilings_;  // TFLOP/s
  std::string missing_;                     // why a ceiling is not known
};

Measurement::Measurement(const Options& options)
    : options_(options),
      gpu_(value_or_throw(app::choose_device(options.engine.node.device, options.engine.stage.dtype)) ==
           app::DeviceKind::kCuda) {
  for (const std::string& isa : options.cpu_isas) {
    app::EngineOptions engine = options.engine;
    if (isa != "auto") engine.stage.isa = value_or_throw(cpu::parse_isa(isa));
    for (const std::string& quantization : options.quantizations) {
      for (const int32_t ranks : options.tp_sizes) {
        engine.tp_size = ranks;
        variants_.push_back(make_variant(engine, quantization));
      }
    }
  }
}

void Measurement::add(const Figure& figure, double first_tokens, const bench::DeviceCeilings& ceilings,
                      Figures& figures) {
  figures.tokens.push_back(figure.tokens);
  figures.times.push_back(figure.tokens / first_tokens);
  figures.operations.push_back(figure.operations * 1e-12);
  if (figure.bytes) figures.bytes.push_back(*figure.bytes * 1e-9);
  if (ceilings.bytes && figure.bytes) figures.byte_shares.push_back(*figure.bytes / *ceilings.bytes);
  if (ceilings.operations) figures.operation_shares.push_back(figure.operations / *ceilings.operations);
}

template <class Round>
void Measurement::measure(const std::string& load, const Round& round) {
  const int threads = options_.engine.node.threads > 0 ? options_.engine.node.threads
                                                       : static_cast<int>(std::thread::hardware_concurrency());
  std::vector<Figures> all(variants_.size());
  for (uint32_t i = 0; i < options_.rounds; ++i) {
    const bench::DeviceCeilings ceilings = gpu_ ? bench::measure_gpu() : bench::measure_cpu(threads);
    if (!ceilings.missing.empty()) missing_ = ceilings.missing;
    if (ceilings.bytes) byte_ceilings_.push_back(*ceilings.bytes * 1e-9);
    if (ceilings.operations) operation_ceilings_.push_back(*ceilings.operations * 1e-12);
    std::vector<Figure> figures(variants_.size());
    for (size_t turn = 0; turn < variants_.size(); ++turn) {
      const size_t which = (turn + i) % variants_.size();  // another one begins each round
      figures[which] = round(variants_[which]);
    }
    for (size_t which = 0; which < variants_.size(); ++which) {
      add(figures[which], figures.front().tokens, ceilings, all[which]);
    }
  }
  const auto cell = [](const std::vector<double>& values, int decimals) {
    return values.empty() ? std::string("-") : bench::spread(values, decimals);
  };
  for (size_t which = 0; which < variants_.size(); ++which) {
    const Figures& figures = all[which];
    const bool alone = variants_.size() == 1;
    fmt::print("| {}{} | {} | {}{} | {} | {} | {} |\n", load, alone ? "" : ", " + variants_[which].way,
               cell(figures.tokens, 1), alone ? "" : cell(figures.times, 2) + " | ", cell(figures.bytes, 1),
               cell(figures.byte_shares, 3), cell(figures.operations, 2), cell(figures.operation_shares, 3));
  }
  std::fflush(stdout);
}

void Measurement::decode(uint32_t count) {
  const auto page = options_.engine.stage.page_size;
  // All but one token of such a prompt is in the cache once it has been asked.
  const uint32_t prompt = std::max(options_.context / page, 1u) * page + 1;
  std::vector<sched::GenerateRequest> requests;
  for (uint32_t i = 0; i < count; ++i) {
    requests.push_back(
        bench::random_request(variants_.front().engine->engine(), next_seed_++, prompt, options_.output));
  }
  for (const Variant& held : variants_) (void)bench::ask(held.engine->engine(), requests);
  measure(fmt::format("decode, {} sequences of {} tokens", count, prompt), [&](const Variant& held) {
    return decode_figure(bench::ask(held.engine->engine(), requests), prompt, held.work);
  });
}

void Measurement::prefill(uint32_t tokens) {
  const uint32_t prefix = options_.prefix;
  const sched::GenerateRequest before =
      bench::random_request(variants_.front().engine->engine(), next_seed_++, std::max(prefix, 1u), 1);
  const auto round = [&](const Variant& held) {
    auto request = bench::random_request(held.engine->engine(), next_seed_++, tokens, 1);
    if (prefix > 0) request.prompt.insert(request.prompt.begin(), before.prompt.begin(), before.prompt.end());
    const auto begin = bench::Reply::Clock::now();
    const std::vector<bench::Reply> replies = bench::ask(held.engine->engine(), {request});
    const double seconds = seconds_between(begin, replies.front().times.front());
    const double cached = prefix > 0 ? held.work.prompt_operations(prefix) : 0;
    const double operations = held.work.prompt_operations(prefix + tokens) - cached;
    return Figure{.tokens = tokens / seconds, .bytes = {}, .operations = operations / seconds};
  };
  for (const Variant& held : variants_) (void)round(held);  // the prefix is in the cache then
  const std::string behind = prefix > 0 ? fmt::format(" behind {}", prefix) : "";
  measure(fmt::format("prompt of {} tokens{}, in chunks of {}", tokens, behind,
                      options_.engine.head.scheduler.chunked_prefill_size),
          round);
}

void Measurement::run() {
  fmt::print("{}\n", app::describe_devices());
  const bool alone = variants_.size() == 1;
  fmt::print("| load | tokens/s | {}GB/s read | of {} | TFLOP/s | of {} |\n|---|---|{}---|---|---|---|\n",
             alone ? "" : "times the first's | ", gpu_ ? "a copy" : "reading",
             gpu_ ? "cuBLASLt's" : "the fastest instructions'", alone ? "" : "---|");
  for (const uint32_t count : options_.decode) decode(count);
  for (const uint32_t tokens : options_.prefill) prefill(tokens);
  fmt::print("\n");
  if (!byte_ceilings_.empty()) {
    fmt::print("{} {} GB/s\n", gpu_ ? "a copy, read and written:" : "reading:", bench::spread(byte_ceilings_, 1));
  }
  if (!operation_ceilings_.empty()) {
    fmt::print("{} {} TFLOP/s\n", gpu_ ? "cuBLASLt's product of 8192 each way:" : "the fastest instructions:",
               bench::spread(operation_ceilings_, 2));
  }
  if (!missing_.empty()) fmt::print("not measured: {}\n", missing_);
}

/// Sizes the pools for every load, and for the longest load alone.
void fit(Options& options) {
  const auto page = options.engine.stage.page_size;
  const uint32_t decoded = options.context + page + options.output;
  uint32_t context = options.decode.empty() ? 0 : decoded;
  int64_t tokens = 0;
  for (const uint32_t count : options.decode) {
    // Windows and states have room for one sequence in each 256 tokens, if they fit the memory.
    tokens = std::max(tokens, int64_t{count} * std::max(decoded + page, 256u));
    options.engine.stage.max_running = std::max(options.engine.stage.max_running, count);
  }
  for (const uint32_t prompt : options.prefill) {
    context = std::max(context, options.prefix + prompt + page);
    tokens = std::max(tokens, int64_t{options.prefix} + prompt + 2 * page);
  }
  options.engine.context_length = static_cast<int32_t>(context);
  // Chunks of prompts need room beside the sequences, since pages of a window are freed behind them.
  options.engine.max_total_tokens = tokens + 2 * options.engine.head.scheduler.chunked_prefill_size;
  options.engine.head.max_queued = std::max(options.engine.head.max_queued, options.engine.stage.max_running);
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  app::EngineOptions& engine = options.engine;
  engine.head.scheduler.chunked_prefill_size = 2048;
  CLI::App app("Decode steps and prompts of a whole model on one stage, beside what bounds them in the same run");
  app.add_option("--model-path", engine.model_path, "A model folder; no tokenizer is needed")->required();
  app::add_choice(app, "--device", engine.node.device, "auto, cpu, cuda");
  const auto set_dtype = [&engine](const std::string& name) {
    engine.stage.dtype = parse_enum<tensor::DType>(name).value_or(tensor::DType::kBF16);
  };
  app::add_name(app, "--dtype", {"auto", "bf16", "f32"}, set_dtype, "auto (bf16), bf16, f32")->default_str("auto");
  app.add_option("--cpu-isa", options.cpu_isas, "Instruction sets, in turns: auto, " + cpu::isa_names())
      ->capture_default_str();
  app.add_option("--quantization", options.quantizations,
                 "How weights are held, in turns: none, w8, …, as serve has it")
      ->capture_default_str();
  app.add_option("--tp-size", options.tp_sizes, "Ranks that divide the threads, in turns")
      ->check(CLI::IsMember({1, 2, 4, 8}))
      ->capture_default_str();
  app.add_option("--threads", engine.node.threads, "Of the whole process; 0: one per CPU")->capture_default_str();
  app.add_option("--chunked-prefill-size", engine.head.scheduler.chunked_prefill_size, "Tokens")->capture_default_str();
  app.add_flag("--disable-cuda-graph{false}", engine.node.cuda_graphs, "Decode steps on a GPU op by op");
  app::add_choice(app, "--cuda-products", engine.node.gemm, "auto, wgmma, mma");
  app.add_option("--decode", options.decode, "Sequences at once; 0: none")->capture_default_str();
  app.add_option("--context", options.context, "Tokens of a sequence that decodes")->capture_default_str();
  app.add_option("--output-len", options.output, "Tokens of its answer")->capture_default_str();
  app.add_option("--prefill", options.prefill, "Tokens of a prompt")->capture_default_str();
  app.add_option("--prefix", options.prefix, "Tokens before each prompt that the cache holds; whole pages")
      ->check([page = engine.stage.page_size](const std::string& text) {
        return std::atoll(text.c_str()) % page == 0 ? "" : fmt::format("wanted a multiple of {}", page);
      })
      ->capture_default_str();
  app.add_option("--rounds", options.rounds, "Per load, after one that does not count")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  std::erase(options.decode, 0u);
  std::erase(options.prefill, 0u);
  fit(options);
  log::configure(log::Level::kWarn, false);
  try {
    Measurement(options).run();
  } catch (const std::exception& error) {
    fmt::print(stderr, "model_speed: {}\n", error.what());
    return 1;
  }
}
