#include "load/workload.h"

#include <array>
#include <cmath>
#include <random>

#include "base/json.h"
#include "base/random.h"

namespace millrace::load {
namespace {

/// What a stream of draws is for; streams of different purposes have nothing in common.
enum Purpose : uint32_t { kMeasured, kWarmup, kPrefix };

/// Random numbers that depend on (seed, purpose, index) alone.
class RandomStream {
 public:
  RandomStream(uint64_t seed, uint32_t purpose, uint32_t index)
      : key_{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)}, counter_{0, index, purpose, 0} {}

  uint32_t next() {
    if (used_ == words_.size()) {
      words_ = philox4x32(key_, counter_);
      ++counter_[0];
      used_ = 0;
    }
    return words_[used_++];
  }
  /// Uniform in [0, bound).
  uint32_t below(uint32_t bound) { return static_cast<uint32_t>((static_cast<uint64_t>(next()) * bound) >> 32); }

 private:
  std::array<uint32_t, 2> key_;
  std::array<uint32_t, 4> counter_;
  std::array<uint32_t, 4> words_{};
  size_t used_ = 4;
};

/// Words that most tokenizers turn into one token each.
constexpr std::array<std::string_view, 64> kWords = {
    "the",   "of",   "and", "to",   "in",   "a",     "is",   "that",  "for", "it",   "was",   "on",    "with",
    "he",    "be",   "as",  "by",   "at",   "from",  "his",  "you",   "are", "this", "not",   "but",   "had",
    "have",  "her",  "or",  "an",   "they", "which", "one",  "were",  "all", "we",   "when",  "there", "can",
    "more",  "if",   "no",  "man",  "out",  "so",    "what", "time",  "up",  "go",   "about", "than",  "into",
    "could", "only", "new", "some", "two",  "may",   "then", "first", "any", "like", "now",   "over"};

uint32_t draw_length(RandomStream& draws, uint32_t length, double range_ratio) {
  const auto low = static_cast<uint32_t>(std::max(1.0, std::floor(length * (1.0 - range_ratio))));
  const auto high = static_cast<uint32_t>(std::max<double>(low, std::ceil(length * (1.0 + range_ratio))));
  return low + draws.below(high - low + 1);
}

void append_tokens(Prompt& prompt, RandomStream& draws, uint32_t count, const Options& options) {
  prompt.length += count;
  for (uint32_t i = 0; i < count; ++i) {
    if (!options.text) {
      prompt.ids.push_back(static_cast<TokenId>(draws.below(options.vocab_size)));
      continue;
    }
    std::string& text = prompt.messages.back();
    if (!text.empty()) text += ' ';
    text += kWords[draws.below(kWords.size())];
  }
}

/// A conversation as a text to go on with. A reply follows as it was drawn, so that its tokens stay what they were.
std::string plain_text(const std::vector<std::string>& messages) {
  std::string text;
  for (size_t i = 0; i < messages.size(); ++i) {
    if (i > 0 && i % 2 == 0) text += ' ';
    text += messages[i];
  }
  return text;
}

/// Inverts the expected number of arrivals: the rate grows linearly over the ramp and is constant after it.
double time_of_arrival_s(double expected_arrivals, double rate, double ramp_s) {
  const double in_ramp = rate * ramp_s / 2;
  if (expected_arrivals < in_ramp) return std::sqrt(2 * ramp_s * expected_arrivals / rate);
  return ramp_s / 2 + expected_arrivals / rate;
}

}  // namespace

uint32_t Workload::conversation_count() const {
  return options_.dataset == Dataset::kMultiTurn ? options_.num_prompts / options_.turn_count : options_.num_prompts;
}

Prompt Workload::prompt(uint32_t index, const std::vector<std::string>& replies) const {
  return make(index, kMeasured, replies);
}
Prompt Workload::warmup(uint32_t index) const {
  return make(index, kWarmup, {});
}

Prompt Workload::make(uint32_t index, uint32_t purpose, const std::vector<std::string>& replies) const {
  const auto first = index - static_cast<uint32_t>(replies.size()) * conversation_count();
  Prompt prompt;
  for (size_t turn = 0; turn <= replies.size(); ++turn) {
    RandomStream draws(options_.seed, purpose, first + static_cast<uint32_t>(turn) * conversation_count());
    const uint32_t length = draw_length(draws, options_.input_len, options_.range_ratio);
    prompt.output_tokens = draw_length(draws, options_.output_len, options_.range_ratio);
    if (turn > 0) prompt.messages.push_back(replies[turn - 1]);
    prompt.messages.emplace_back();
    if (options_.dataset == Dataset::kSharedPrefix) {
      RandomStream prefix(options_.prefix_seed, kPrefix, draws.below(options_.prefix_count));
      append_tokens(prompt, prefix, options_.prefix_len, options_);
    }
    append_tokens(prompt, draws, length, options_);
  }
  return prompt;
}

std::string Workload::body(const Prompt& prompt, uint32_t index, const std::string& model) const {
  std::string out;
  out.reserve(prompt.ids.size() * 6 + prompt.length * 6 + 256);
  JsonWriter json(out);
  json.begin_object().member("model", model);
  if (options_.endpoint == Endpoint::kChat) {
    json.key("messages").begin_array();
    for (size_t i = 0; i < prompt.messages.size(); ++i) {
      json.begin_object().member("role", i % 2 == 0 ? "user" : "assistant").member("content", prompt.messages[i]);
      json.end_object();
    }
    json.end_array();
  } else if (options_.text) {
    json.member("prompt", plain_text(prompt.messages));
  } else {
    json.key("prompt").begin_array();
    for (const TokenId id : prompt.ids) json.value(id);
    json.end_array();
  }
  json.member("max_tokens", prompt.output_tokens).member("temperature", options_.temperature);
  if (options_.temperature > 0.0) json.member("seed", (options_.seed + index) & ((uint64_t{1} << 53) - 1));
  if (options_.ignore_eos) json.member("ignore_eos", true);
  json.member("stream", true).key("stream_options").begin_object().member("include_usage", true).end_object();
  json.end_object();
  return out;
}

std::vector<async::Duration> Workload::arrivals() const {
  std::vector<async::Duration> due(options_.num_prompts, async::Duration{0});
  if (std::isinf(options_.request_rate)) return due;
  // Gaps of mean 1 in units of expected arrivals, so that the ramp only bends the time axis.
  std::mt19937_64 engine(options_.seed);
  std::gamma_distribution<double> gap(options_.burstiness, 1.0 / options_.burstiness);
  double expected = 0.0;
  for (async::Duration& at : due) {
    const double at_s = time_of_arrival_s(expected, options_.request_rate, options_.ramp_up_s);
    at = std::chrono::duration_cast<async::Duration>(std::chrono::duration<double>(at_s));
    expected += gap(engine);
  }
  return due;
}

}  // namespace millrace::load
