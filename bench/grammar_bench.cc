// What holding an answer to a form costs: reading the form, and per token the mask of what may come next and going on
// by
// what was drawn, on one core, over a tokenizer's vocabulary. An answer is written by random draws, the same again and
// again: "first" is the first answer of a form, whose places nobody has come to before, "later" those after it.
#include <fmt/format.h>
#include <time.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <random>

#include "grammar/grammar.h"
#include "grammar/json_schema.h"
#include "grammar/regex_parser.h"
#include "text/tokenizer/tokenizer.h"

using namespace millrace;

namespace {

/// The processor time of this thread, so that other programs on the machine do not count.
struct Clock {
  using time_point = std::chrono::nanoseconds;
  static time_point now() {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
  }
};

double us_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
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
    {"alternation", "", R"((.*foo|.*bar|.*[0-9]{4}).*)"},
    {"many words", "", R"(([A-Za-z]{1,20} ){1,50}(yes|no|\w+@\w+\.com))"},
    {"pattern", "", R"([A-Z][a-z]+( [A-Z][a-z]+)*, \d{4}-\d{2}-\d{2}: .*)"},
};

Result<std::shared_ptr<const grammar::Grammar>> compile(const GrammarCase& form,
                                                        const std::shared_ptr<const grammar::Vocabulary>& vocabulary) {
  grammar::Definition definition;
  auto read = [&]() -> Result<grammar::ExpressionPtr> {
    if (*form.pattern != '\0') return grammar::parse_regex(form.pattern);
    if (*form.schema == '\0') return grammar::any_json_object(definition);
    return grammar::parse_json_schema(form.schema, definition);
  }();
  if (read.has_error()) return read.error();
  definition.root = *read;
  return grammar::Grammar::compile(definition, vocabulary, {});
}

/// Returns the time of the mask and of the step of each token in us.
std::vector<double> write_answer(const std::shared_ptr<const grammar::Grammar>& grammar, size_t most, uint64_t seed) {
  std::mt19937_64 random(seed);
  grammar::Matcher matcher(grammar, false);
  std::vector<double> times;
  while (times.size() < most && !matcher.must_end()) {
    auto begin = Clock::now();
    const auto allowed = matcher.allowed();
    double us = us_since(begin);
    if (allowed == nullptr) break;
    const auto size = static_cast<TokenId>(grammar->vocabulary().size());
    auto token = static_cast<TokenId>(random() % static_cast<uint64_t>(size));
    while (!allowed->contains(token)) token = (token + 1) % size;
    begin = Clock::now();
    if (!matcher.advance(token)) throw std::logic_error("a token that may come next does not");
    times.push_back(us + us_since(begin));
  }
  return times;
}

std::string summary(std::vector<double> times) {
  std::sort(times.begin(), times.end());
  double sum = 0;
  for (const double time : times) sum += time;
  return fmt::format("{:8.1f} {:8.1f} {:8.1f}", sum / static_cast<double>(times.size()), times[times.size() / 2],
                     times.back());
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("What holding answers to a form costs per token");
  std::string folder = "models/books-4m";
  size_t tokens = 200;
  int later = 20;
  app.add_option("tokenizer", folder, "folder with a tokenizer.json");
  app.add_option("--tokens", tokens, "of an answer at most");
  app.add_option("--answers", later, "after the first");
  CLI11_PARSE(app, argc, argv);
  const auto tokenizer = text::Tokenizer::load(folder);
  if (tokenizer.has_error()) {
    fmt::print(stderr, "{}\n", tokenizer.error().message);
    return 1;
  }
  auto begin = Clock::now();
  std::vector<std::string> texts((*tokenizer)->vocab_size());
  for (TokenId token = 0; token < static_cast<TokenId>(texts.size()); ++token) {
    if (!(*tokenizer)->is_special(token)) texts[static_cast<size_t>(token)] = (*tokenizer)->token_bytes(token);
  }
  const auto vocabulary = std::make_shared<const grammar::Vocabulary>(texts);
  fmt::print("vocabulary of {} tokens, {} nodes: {:.1f} ms\n", texts.size(), vocabulary->node_count(),
             us_since(begin) / 1000);
  fmt::print("{:14} {:>10} | first answer, us per token: mean, median, largest | later: mean, median, largest\n",
             "form", "read, ms");
  for (const GrammarCase& form : kGrammarCases) {
    begin = Clock::now();
    const auto grammar = compile(form, vocabulary);
    const double read_ms = us_since(begin) / 1000;
    if (grammar.has_error()) {
      fmt::print(stderr, "{}: {}\n", form.name, grammar.error().message);
      return 1;
    }
    const auto first = write_answer(*grammar, tokens, 1);
    std::vector<double> rest;
    for (int i = 0; i < later; ++i) {
      const auto times = write_answer(*grammar, tokens, 2 + static_cast<uint64_t>(i));
      rest.insert(rest.end(), times.begin(), times.end());
    }
    fmt::print("{:14} {:10.2f} | {} | {}\n", form.name, read_ms, summary(first), summary(rest));
  }
}
