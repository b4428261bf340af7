// What drafts are worth: tokens per second of sequences whose answers are predicted rightly, in part, wrongly or not at
// all, in turns on one engine. The answers are those of a run without drafts; a wrong token is another one than that.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <random>

#include "app/flag_types.h"
#include "base/random.h"
#include "local_clients.h"

using namespace millrace;
using bench::Reply;

namespace {

struct Options {
  app::EngineOptions engine;
  std::vector<uint32_t> sequences = {1, 4, 16};
  std::vector<double> right = {1, 0.9, 0.7, 0};  ///< fractions of predicted tokens that are right
  uint32_t prompt = 128;
  uint32_t output = 96;
  uint32_t rounds = 5;
};

/// Returns the sum over sequences of tokens per second after the first token.
double decode_rate(const std::vector<Reply>& replies) {
  double rate = 0;
  for (const Reply& reply : replies) {
    const double seconds = std::chrono::duration<double>(reply.times.back() - reply.times.front()).count();
    rate += static_cast<double>(reply.tokens.size() - 1) / seconds;
  }
  return rate;
}

std::vector<sched::GenerateRequest> requests_of(const sched::Engine& engine, const Options& options, uint32_t count,
                                                uint32_t round) {
  std::vector<sched::GenerateRequest> requests;
  for (uint32_t i = 0; i < count; ++i) {
    requests.push_back(bench::random_request(engine, uint64_t{round} * 1000 + i, options.prompt, options.output));
  }
  return requests;
}

void predict(std::vector<sched::GenerateRequest>& requests, const std::vector<Reply>& replies, double right) {
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].prediction = replies[i].tokens;
    for (size_t at = 0; at < replies[i].tokens.size(); ++at) {
      TokenId& token = requests[i].prediction[at];
      if (uniform_at(i + 7, at) >= right) token = token == 5 ? 6 : 5;
    }
  }
}

void measure(sched::Engine& engine, const Options& options, uint32_t count) {
  std::vector<double> plain;
  std::vector<std::vector<double>> ratios(options.right.size());
  std::minstd_rand order(1);
  for (uint32_t round = 0; round < options.rounds; ++round) {
    auto requests = requests_of(engine, options, count, round);
    const std::vector<Reply> answers = bench::ask(engine, requests);  // also brings the prompts into the cache
    std::vector<double> rates(options.right.size() + 1);
    std::vector<size_t> turns(rates.size());
    for (size_t i = 0; i < turns.size(); ++i) turns[i] = i;
    std::ranges::shuffle(turns, order);
    for (const size_t turn : turns) {
      auto asked = requests;
      if (turn > 0) predict(asked, answers, options.right[turn - 1]);
      const std::vector<Reply> replies = bench::ask(engine, asked);
      for (size_t i = 0; i < replies.size(); ++i) {
        if (replies[i].tokens != answers[i].tokens) throw std::runtime_error("an answer depends on its prediction");
      }
      rates[turn] = decode_rate(replies);
    }
    plain.push_back(rates[0]);
    for (size_t i = 0; i < ratios.size(); ++i) ratios[i].push_back(rates[i + 1] / rates[0]);
  }
  fmt::print("| {} | {} |", count, bench::spread(plain, 2));
  for (const auto& values : ratios) fmt::print(" {} |", bench::spread(values, 2));
  fmt::print("\n");
  std::fflush(stdout);
}

void run(const Options& options) {
  const auto engine = bench::start_engine(options.engine);
  fmt::print("| sequences | tokens/s without a prediction |");
  for (const double right : options.right) fmt::print(" {:.0f} % right: times |", 100 * right);
  fmt::print("\n|{}\n", [&] {
    std::string line;
    for (size_t i = 0; i < options.right.size() + 2; ++i) line += "---|";
    return line;
  }());
  for (const uint32_t count : options.sequences) measure(engine->engine(), options, count);
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  options.engine.context_length = 1024;
  options.engine.max_total_tokens = 32768;
  CLI::App app("Tokens per second with predicted answers, over those without, in turns on one engine");
  app.add_option("--model-path", options.engine.model_path, "A model folder")->required();
  app.add_option("--pp-size", options.engine.pp_size, "Stages")->capture_default_str();
  app.add_option("--threads", options.engine.node.threads, "Of the whole process; 0: one per CPU")
      ->capture_default_str();
  app::add_choice(app, "--chunking", options.engine.head.scheduler.chunking, "fixed, balanced");
  app.add_option("--speculative-num-draft-tokens", options.engine.head.scheduler.draft_tokens, "Drafts per step")
      ->capture_default_str();
  app.add_option("--sequences", options.sequences, "That are answered at once")->capture_default_str();
  app.add_option("--right", options.right, "Parts of predicted tokens that are right")->capture_default_str();
  app.add_option("--prompt-len", options.prompt, "Tokens of a prompt")->capture_default_str();
  app.add_option("--output-len", options.output, "Tokens of an answer")->capture_default_str();
  app.add_option("--rounds", options.rounds, "Of turns")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  try {
    run(options);
  } catch (const std::exception& error) {
    fmt::print(stderr, "drafts: {}\n", error.what());
    return 1;
  }
}
