// What becomes of JSON schemas in a folder: which are refused and why, whether their valid instances are accepted and
// the invalid ones refused, and what compiling costs. Reads files as MaskBench has them ("schema" and "tests"), as the
// JSON-Schema-Test-Suite has them (an array of these), and plain schemas. Instances are fed as compact JSON, byte by
// byte.
#include <fmt/format.h>
#include <malloc.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>

#include "base/json_value.h"
#include "grammar/grammar.h"
#include "grammar/json_schema.h"
#include "grammar/matcher.h"
#include "thread_time.h"

using namespace millrace;

namespace {

std::shared_ptr<const grammar::Vocabulary> bytes() {
  std::vector<std::string> texts;
  for (int byte = 0; byte < 256; ++byte) texts.emplace_back(1, static_cast<char>(byte));
  texts.emplace_back();
  return std::make_shared<const grammar::Vocabulary>(texts);
}
constexpr TokenId kEndToken = 256;

using GrammarPtr = std::shared_ptr<const grammar::Grammar>;

Result<GrammarPtr> compile(std::string_view schema, const std::shared_ptr<const grammar::Vocabulary>& vocabulary,
                           const grammar::SchemaOptions& options) {
  grammar::Definition definition;
  auto root = grammar::parse_json_schema(schema, definition, options);
  if (root.has_error()) return root.error();
  definition.root = *root;
  return grammar::Grammar::compile(definition, vocabulary, {kEndToken});
}

/// Returns how many bytes of a text match. Returns its size only if the text may end there.
size_t matched_bytes(const GrammarPtr& grammar, std::string_view text) {
  grammar::Matcher matcher(grammar, true);
  size_t matched = 0;
  while (matched < text.size() && matcher.advance(static_cast<uint8_t>(text[matched]))) ++matched;
  return matched == text.size() && !matcher.may_end() ? matched - 1 : matched;
}

/// Returns what a refusal is about, without its position and numbers.
std::string kind_of(const std::string& message) {
  std::string kind = message.substr(0, 300);
  const size_t colon = kind.rfind(": ");
  if (colon != std::string::npos) kind = kind.substr(colon + 2);
  if (kind.find("there is no '") == 0) kind = "a reference to nothing";
  if (kind.find("only references within") == 0) kind = "a reference to another document";
  const size_t place = kind.find(" (at byte");
  return kind.substr(0, std::min<size_t>(place, 100));
}

class Report {
 public:
  Report(bool lists, const grammar::SchemaOptions& options) : lists_(lists), options_(options) {}

  void add(const std::string& name, JsonValue schema, JsonValue tests) {
    ++schemas_;
    const std::string text = to_json(schema);
    const size_t before = mallinfo2().uordblks;
    const double begin = bench::thread_seconds();
    const auto grammar = compile(text, vocabulary_, options_);
    compile_ms_.push_back((bench::thread_seconds() - begin) * 1e3);
    if (lists_ && compile_ms_.back() > 200) fmt::print("slow {}: {:.0f} ms\n", name, compile_ms_.back());
    if (grammar.has_error()) {
      if (lists_) fmt::print("refused {}: {}\n", name, grammar.error().message.substr(0, 300));
      refusals_[kind_of(grammar.error().message)].push_back(name);
      ++refused_;
      return;
    }
    states_.push_back(static_cast<double>((*grammar)->automaton().state_count()));
    add_tests(name, *grammar, tests);
    kilobytes_.push_back(static_cast<double>(mallinfo2().uordblks - before) / 1024);
  }

  void print() {
    const auto share = [](size_t part, size_t whole) {
      return whole == 0 ? 0.0 : 100.0 * static_cast<double>(part) / static_cast<double>(whole);
    };
    const size_t accepted = schemas_ - refused_;
    fmt::print("schemas {}, refused {} ({:.1f} %)\n", schemas_, refused_, share(refused_, schemas_));
    fmt::print(
        "of the accepted: {} invalid instances of {} accepted, in {} schemas; {} valid ones of {} refused, in {} "
        "schemas ({:.2f} %)\n",
        bad_invalid_, invalid_, with_bad_invalid_, bad_valid_, valid_, with_bad_valid_,
        share(with_bad_valid_, accepted));
    print_percentiles("compile, ms", compile_ms_);
    print_percentiles("automaton, states", states_);
    print_percentiles("memory, KiB", kilobytes_);
    std::vector<std::pair<size_t, std::string>> kinds;
    for (const auto& [kind, names] : refusals_) kinds.emplace_back(names.size(), kind);
    std::sort(kinds.rbegin(), kinds.rend());
    for (const auto& [count, kind] : kinds) fmt::print("{:6} {}  ({})\n", count, kind, refusals_[kind].front());
  }

 private:
  void add_tests(const std::string& name, const GrammarPtr& grammar, JsonValue tests) {
    JsonArray array;
    if (!tests.get(array)) return;
    size_t bad_valid = 0;
    size_t bad_invalid = 0;
    size_t index = 0;
    for (const JsonValue test : array) {
      const bool is_valid = test["valid"].is_true();
      const std::string text = to_json(test["data"]);
      const size_t matched = matched_bytes(grammar, text);
      const bool is_accepted = matched == text.size();
      ++(is_valid ? valid_ : invalid_);
      if (is_valid && !is_accepted) ++bad_valid;
      if (!is_valid && is_accepted) ++bad_invalid;
      if (lists_ && is_valid != is_accepted) {
        fmt::print("{} {} test {}: {} <here> {}\n", is_valid ? "valid refused" : "invalid accepted", name, index,
                   text.substr(0, matched).substr(matched - std::min<size_t>(matched, 200)), text.substr(matched, 100));
      }
      ++index;
    }
    bad_valid_ += bad_valid;
    bad_invalid_ += bad_invalid;
    with_bad_valid_ += bad_valid > 0 ? 1 : 0;
    with_bad_invalid_ += bad_invalid > 0 ? 1 : 0;
  }

  static void print_percentiles(const char* name, std::vector<double>& values) {
    if (values.empty()) return;
    std::sort(values.begin(), values.end());
    const auto at = [&](double share) {
      return values[static_cast<size_t>(share * static_cast<double>(values.size() - 1))];
    };
    fmt::print("{:18} median {:.2f}, 90 % {:.2f}, 99 % {:.2f}, largest {:.2f}\n", name, at(0.5), at(0.9), at(0.99),
               values.back());
  }

  const bool lists_;
  const grammar::SchemaOptions options_;
  const std::shared_ptr<const grammar::Vocabulary> vocabulary_ = bytes();
  size_t schemas_ = 0, refused_ = 0, valid_ = 0, invalid_ = 0;
  size_t bad_valid_ = 0, bad_invalid_ = 0, with_bad_valid_ = 0, with_bad_invalid_ = 0;
  std::vector<double> compile_ms_, states_, kilobytes_;
  std::map<std::string, std::vector<std::string>> refusals_;
};

void read_file(const std::filesystem::path& path, Report& report) {
  std::ifstream file(path);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  const auto document = JsonDocument::parse(text);
  if (document.has_error()) return fmt::print(stderr, "{}: {}\n", path.string(), document.error().message);
  const JsonValue root = document->root();
  const std::string name = path.filename().string();
  JsonArray groups;
  if (root.get(groups)) {
    size_t index = 0;
    for (const JsonValue group : groups) {
      report.add(fmt::format("{}[{}]", name, index++), group["schema"], group["tests"]);
    }
  } else if (root["schema"].is_missing()) {
    report.add(name, root, {});
  } else {
    report.add(name, root["schema"], root["tests"]);
  }
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("What becomes of the JSON schemas of a folder");
  std::string folder;
  size_t every = 1;
  bool lists = false;
  grammar::SchemaOptions options;
  std::string only;
  app.add_option("folder", folder, "folder with .json files, searched as a whole")->required();
  app.add_option("--every", every, "read one file of this many")->check(CLI::PositiveNumber);
  app.add_option("--only", only, "read the files whose names contain this");
  app.add_flag("--list", lists, "print each refused schema and each instance that is taken wrongly");
  app.add_flag("--only-declared", options.only_declared, "as for the arguments of tools");
  CLI11_PARSE(app, argc, argv);
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    const bool is_wanted = entry.path().filename().string().find(only) != std::string::npos;
    if (entry.path().extension() == ".json" && is_wanted) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  Report report(lists, options);
  for (size_t i = 0; i < files.size(); i += every) read_file(files[i], report);
  report.print();
}
