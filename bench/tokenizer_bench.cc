#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "text/tokenizer/incremental_detokenizer.h"
#include "text/tokenizer/tokenizer.h"
#include "thread_time.h"

// Time to load a tokenizer, and encoding and decoding speed over a corpus, on one thread.

namespace {

using namespace millrace;
namespace fs = std::filesystem;

constexpr const char* kUsage =
    "usage: tokenizer_bench [MODEL_DIR...] [-- TEXT_FILE...]: encoding and decoding speed on one thread, MB/s.\n"
    "Without arguments: the tokenizers and books of the folder that MILLRACE_SHARED_DATA names, or ../shared/data.\n";
constexpr int kRounds = 9;
/// Prompts as a server sees them, and whole books.
constexpr size_t kPromptBytes = 4096;

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream content;
  content << file.rdbuf();
  return std::move(content).str();
}

/// Runs `work` over `bytes` bytes several times and prints the median and the spread.
template <class Work>
void measure(const std::string& what, size_t bytes, Work work) {
  std::vector<double> rates;
  for (int round = 0; round < kRounds; ++round) {
    const double start = bench::thread_seconds();
    work();
    rates.push_back(static_cast<double>(bytes) / (bench::thread_seconds() - start) / 1e6);
  }
  std::sort(rates.begin(), rates.end());
  fmt::print("{:<28} {:>8.1f} MB/s median   {:>8.1f} to {:.1f}\n", what, rates[kRounds / 2], rates.front(),
             rates.back());
}

/// Loads the tokenizer several times and prints the median and the spread.
void measure_load(const std::string& name, const fs::path& model) {
  std::vector<double> times_ms;
  for (int round = 0; round < kRounds; ++round) {
    const double start = bench::thread_seconds();
    (void)text::Tokenizer::load(model);
    times_ms.push_back((bench::thread_seconds() - start) * 1e3);
  }
  std::sort(times_ms.begin(), times_ms.end());
  fmt::print("{:<28} {:>8.1f} ms median     {:>8.1f} to {:.1f}\n", name + " load", times_ms[kRounds / 2],
             times_ms.front(), times_ms.back());
}

bool bench_model(const fs::path& model, const std::string& text) {
  const auto loaded = text::Tokenizer::load(model);
  if (loaded.has_error()) {
    fmt::print(stderr, "{}: {}\n", model.string(), loaded.error().message);
    return false;
  }
  const auto& tokenizer = *loaded;
  const std::string name = model.filename().string();
  measure_load(name, model);
  size_t sink = 0;
  const auto encode_prompts = [&](const text::Tokenizer& with) {
    for (size_t at = 0; at < text.size(); at += kPromptBytes) {
      sink += with.encode(std::string_view(text).substr(at, kPromptBytes), false).size();
    }
  };
  measure(name + " encode", text.size(), [&] { sink += tokenizer->encode(text, false).size(); });
  measure(name + " encode 4 KiB", text.size(), [&] { encode_prompts(*tokenizer); });
  const std::vector<TokenId> ids = tokenizer->encode(text, false);
  measure(name + " decode", text.size(), [&] { sink += tokenizer->decode(ids, false).size(); });
  measure(name + " decode in parts", text.size(), [&] {
    text::IncrementalDetokenizer detokenizer(tokenizer, true);
    for (const TokenId id : ids) sink += detokenizer.push(id).size();
  });
  fmt::print("{:<28} {:>8.2f} bytes per token ({})\n", name,
             static_cast<double>(text.size()) / static_cast<double>(ids.size()), sink % 10);
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<fs::path> models;
  std::vector<fs::path> texts;
  bool after_separator = false;
  for (int i = 1; i < argc; ++i) {
    if (!after_separator && (std::string_view(argv[i]) == "--help" || std::string_view(argv[i]) == "-h")) {
      fmt::print("{}", kUsage);
      return 0;
    }
    if (std::string_view(argv[i]) == "--") {
      after_separator = true;
    } else {
      (after_separator ? texts : models).emplace_back(argv[i]);
    }
  }
  const char* given = std::getenv("MILLRACE_SHARED_DATA");
  const fs::path data = given != nullptr ? fs::path(given) : fs::path("../shared/data");
  if (models.empty()) models = {data / "tokenizers/qwen2", data / "tokenizers/llama2"};
  if (texts.empty() && fs::exists(data / "corpus")) {
    for (const auto& book : fs::directory_iterator(data / "corpus")) texts.push_back(book.path());
  }
  std::sort(texts.begin(), texts.end());
  std::string text;
  for (const fs::path& path : texts) text += read_file(path);
  if (text.empty()) {
    fmt::print(stderr, "{}No text was found.\n", kUsage);
    return 2;
  }
  bool good = true;
  for (const fs::path& model : models) good &= bench_model(model, text);
  return good ? 0 : 1;
}
