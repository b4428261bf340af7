// Measures the costs of an output constraint on one core, over the vocabulary of a tokenizer: its compilation, the mask
// of each token and the advance by it. Work is done in slices of at most --steps steps, as the head does it. Outputs
// are random draws. "first" is the first output of a grammar, whose states nobody has visited yet, "later" those after
// it.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <random>

#include "grammar/json_schema.h"
#include "grammar/matcher.h"
#include "grammar/regex_parser.h"
#include "text/tokenizer/tokenizer.h"
#include "thread_time.h"

using namespace millrace;

namespace {

double us_since(double begin) {
  return (bench::thread_seconds() - begin) * 1e6;
}

struct GrammarCase {
  const char* name;
  const char* schema;  ///< empty: any object
  const char* pattern = "";
};

constexpr GrammarCase kGrammarCases[] = {
    {"any object", ""},
    {"person",
     R"({"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer","minimum":0,"maximum":150},
       "mail":{"type":"string","format":"email"},"tags":{"type":"array","items":{"type":"string"}},
       "kind":{"enum":["customer","supplier","partner"]},"notes":{"anyOf":[{"type":"string"},{"type":"null"}]}},
       "required":["name","age","tags","kind"],"additionalProperties":false})"},
    {"open person", R"({"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer","minimum":0},
       "email_address":{"type":"string","format":"email"},"tags":{"type":"array","items":{"type":"string"}}},
       "required":["name","age"]})"},
    {"tree", R"({"$ref":"#/$defs/n","$defs":{"n":{"type":"object","properties":{"value":{"type":"string"},
       "children":{"type":"array","items":{"$ref":"#/$defs/n"}}},"required":["value","children"]}}})"},
    {"string of 200", R"({"type":"object","properties":{"text":{"type":"string","minLength":50,"maxLength":200}},
       "required":["text"]})"},
    {"base64", "", R"([A-Za-z0-9+/]{4}.*)"},
    {"words of 20", "", R"([a-z]{20}[a-z]*)"},
    {"word chars", "", R"(\w{8}\w*)"},
    {"alternation", "", R"((.*foo|.*bar|.*[0-9]{4}).*)"},
    {"contains", "", R"(.*(error|warning|fatal: .*|[A-Z]{3}-[0-9]+).*)"},
    {"20 alternatives", "", R"((.*a.|.*b..|.*c...|.*d....|.*e.....|.*f......|.*g.......|.*h........)*end)"},
    {"many words", "", R"(([A-Za-z]{1,20} ){1,50}(yes|no|\w+@\w+\.com))"},
    {"optional run", "", R"((a?b?c?){3000}[^x]*)"},
    {"long optional run", "", R"((a?b?){33000}x)"},
    {"nested counts", "", R"((([a-z]{1,8},){1,30};){1,100})"},
    {"pattern", "", R"([A-Z][a-z]+( [A-Z][a-z]+)*, \d{4}-\d{2}-\d{2}: .*)"},
};

Result<std::shared_ptr<const grammar::Grammar>> compile(const GrammarCase& one,
                                                        const std::shared_ptr<const grammar::Vocabulary>& vocabulary) {
  grammar::Definition definition;
  auto read = [&]() -> Result<grammar::ExpressionPtr> {
    if (*one.pattern != '\0') return grammar::parse_regex(one.pattern);
    if (*one.schema == '\0') return grammar::any_json_object(definition);
    return grammar::parse_json_schema(one.schema, definition);
  }();
  if (read.has_error()) return read.error();
  definition.root = *read;
  return grammar::Grammar::compile(definition, vocabulary, {});
}

/// The times of one or several outputs in us.
struct Times {
  std::vector<double> tokens;  ///< mask and advance of each token
  std::vector<double> slices;  ///< of which they consist
};

void write_output(const std::shared_ptr<const grammar::Grammar>& grammar, size_t max_tokens, uint64_t steps,
                  uint64_t seed, Times& times) {
  std::mt19937_64 random(seed);
  grammar::Matcher matcher(grammar, false);
  for (size_t i = 0; i < max_tokens; ++i) {
    double us = 0;
    for (bool is_settled = false; !is_settled;) {
      const double begin = bench::thread_seconds();
      grammar::WorkBudget budget(steps);
      is_settled = matcher.settle(budget);
      times.slices.push_back(us_since(begin));
      us += times.slices.back();
    }
    const auto allowed = matcher.allowed();
    if (allowed == nullptr) break;
    times.tokens.push_back(us);
    const auto size = static_cast<TokenId>(grammar->vocabulary().size());
    auto token = static_cast<TokenId>(random() % static_cast<uint64_t>(size));
    while (!allowed->contains(token)) token = (token + 1) % size;
    matcher.append(token);
  }
}

std::string summary(Times& times) {
  std::ranges::sort(times.tokens);
  double sum = 0;
  for (const double time : times.tokens) sum += time;
  return fmt::format("{:8.1f} {:8.1f} {:9.1f} {:9.1f}", sum / static_cast<double>(times.tokens.size()),
                     times.tokens[times.tokens.size() / 2], times.tokens.back(), std::ranges::max(times.slices));
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Costs of output constraints per token");
  std::string folder = "models/books-4m";
  size_t tokens = 200;
  int later = 20;
  uint64_t steps = 20'000;
  app.add_option("tokenizer", folder, "folder with a tokenizer.json");
  app.add_option("--tokens", tokens, "maximum length of an output");
  app.add_option("--outputs", later, "outputs after the first");
  app.add_option("--steps", steps, "steps of a slice");
  CLI11_PARSE(app, argc, argv);
  const auto tokenizer = text::Tokenizer::load(folder);
  if (tokenizer.has_error()) {
    fmt::print(stderr, "{}\n", tokenizer.error().message);
    return 1;
  }
  double begin = bench::thread_seconds();
  std::vector<std::string> texts((*tokenizer)->vocab_size());
  for (TokenId token = 0; token < static_cast<TokenId>(texts.size()); ++token) {
    if (!(*tokenizer)->is_special(token)) texts[static_cast<size_t>(token)] = (*tokenizer)->token_bytes(token);
  }
  const auto vocabulary = std::make_shared<const grammar::Vocabulary>(texts);
  fmt::print("vocabulary of {} tokens, {} nodes: {:.1f} ms\n", texts.size(), vocabulary->node_count(),
             us_since(begin) / 1000);
  fmt::print("us per token: mean, median, largest, and the longest slice\n");
  fmt::print("{:17} {:>10} | {:^38} | {:^38} | {:>6}\n", "grammar", "compile ms", "first", "later", "MiB");
  for (const GrammarCase& one : kGrammarCases) {
    begin = bench::thread_seconds();
    const auto grammar = compile(one, vocabulary);
    const double compile_ms = us_since(begin) / 1000;
    if (grammar.has_error()) {
      fmt::print("{:17} {:10.2f} | {}\n", one.name, compile_ms, grammar.error().message);
      continue;
    }
    Times first;
    Times rest;
    write_output(*grammar, tokens, steps, 1, first);
    for (int i = 0; i < later; ++i) write_output(*grammar, tokens, steps, 2 + static_cast<uint64_t>(i), rest);
    fmt::print("{:17} {:10.2f} | {} | {} | {:6.1f}\n", one.name, compile_ms, summary(first), summary(rest),
               static_cast<double>((*grammar)->bytes()) / (1 << 20));
  }
}
