#include <fmt/format.h>
#include <simdjson.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "base/json_value.h"
#include "base/text_file.h"

/// How fast JSON files are read, compared with simdjson's DOM, which copies every string.
namespace millrace {
namespace {

template <class Read>
double fastest_s(int rounds, const Read& read) {
  double fastest = 1e9;
  for (int round = 0; round < rounds; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    read();
    fastest = std::min(fastest, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  return fastest;
}

void measure(const std::string& path, int rounds) {
  const std::string text = read_text_file(path).value();
  const double own_s = fastest_s(rounds, [&] { (void)JsonDocument::parse(text, kModelFileJson).value(); });
  const double simdjson_s = fastest_s(rounds, [&] {
    simdjson::dom::parser parser;
    (void)parser.parse(text.data(), text.size()).error();
  });
  fmt::print("{}: {:.2f} MB, {:.3f} ms, {:.0f} MB/s; simdjson's DOM {:.3f} ms; ratio {:.2f}\n", path,
             static_cast<double>(text.size()) / 1e6, own_s * 1e3, static_cast<double>(text.size()) / 1e6 / own_s,
             simdjson_s * 1e3, own_s / simdjson_s);
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  CLI::App app("Measures how fast JSON files are read, each the fastest of some rounds");
  std::vector<std::string> paths;
  int rounds = 20;
  app.add_option("files", paths, "JSON files")->required();
  app.add_option("--rounds", rounds, "How often each file is read");
  CLI11_PARSE(app, argc, argv);
  for (const std::string& path : paths) millrace::measure(path, rounds);
}
