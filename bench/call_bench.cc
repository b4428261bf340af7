// Measures what constrained tool calls cost in each format of calls: the states of the automaton, its compilation, and
// the steps of the mask of each token. Outputs are random draws, the same on every machine.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <random>

#include "grammar/matcher.h"
#include "server/output_constraint.h"
#include "text/tokenizer/tokenizer.h"
#include "thread_time.h"

using namespace millrace;

namespace {

struct Tools {
  const char* name;
  std::vector<std::string> schemas;
};

/// What agents declare.
std::vector<Tools> all_tools() {
  const std::string edit =
      R"({"type":"object","properties":{"path":{"type":"string"},"old":{"type":"string"},"new":{"type":"string"},)"
      R"("all":{"type":"boolean","default":false}},"required":["path","old","new"],"additionalProperties":false})";
  const std::string steps =
      R"({"type":"object","properties":{"steps":{"type":"array","items":{"type":"object","properties":)"
      R"({"content":{"type":"string","minLength":1},"status":{"enum":["pending","in_progress","completed"]},)"
      R"("id":{"type":"string"}},"required":["content","status","id"],"additionalProperties":false}}},)"
      R"("required":["steps"]})";
  const std::string bounded =
      R"({"type":"object","properties":{"content":{"type":"string","maxLength":400},"lines":{"type":"array",)"
      R"("items":{"type":"string","maxLength":2000},"maxItems":50},"when":{"type":"string","format":"date-time"},)"
      R"("level":{"type":"integer","minimum":0,"maximum":99}},"required":["content"]})";
  const std::string either = R"({"type":"object","properties":{"project":{"type":"string"},)"
                             R"("paths":{"type":"array","items":{"type":"string"}},)"
                             R"("scopes":{"type":"array","items":{"type":"string"}}},"required":["project"],)"
                             R"("anyOf":[{"required":["paths"]},{"required":["scopes"]}]})";
  std::vector<std::string> many(20, edit);
  many.insert(many.end(), 10, steps);
  return {{"edit", {edit}}, {"steps", {steps}}, {"bounds", {bounded}}, {"either", {either}}, {"30 tools", many}};
}

server::OutputConstraint constraint_of(text::ToolFormat format, const Tools& tools) {
  server::ToolCallConstraint calls{.format = format, .must_call = true};
  for (size_t i = 0; i < tools.schemas.size(); ++i) {
    server::openai::Tool tool;
    tool.name = fmt::format("tool_{}", i);
    tool.parameters = tools.schemas[i];
    calls.tools.push_back(std::move(tool));
  }
  server::OutputConstraint constraint;
  constraint.calls = std::move(calls);
  return constraint;
}

/// Returns the tokens of a tokenizer, or bytes without one. The last ends an output.
std::shared_ptr<const grammar::Vocabulary> vocabulary_of(const std::string& folder) {
  std::vector<std::string> texts;
  if (folder.empty()) {
    for (int byte = 0; byte < 256; ++byte) texts.emplace_back(1, static_cast<char>(byte));
  } else {
    const auto tokenizer = text::Tokenizer::load(folder).value();
    for (TokenId token = 0; token < static_cast<TokenId>(tokenizer->vocab_size()); ++token) {
      texts.push_back(tokenizer->is_special(token) ? "" : tokenizer->token_bytes(token));
    }
  }
  texts.emplace_back();
  return std::make_shared<const grammar::Vocabulary>(texts);
}

/// Returns the mean steps of a token. Later outputs meet states that earlier ones have visited.
double mean_steps(const std::shared_ptr<const grammar::Grammar>& grammar, uint64_t outputs) {
  const auto end = static_cast<TokenId>(grammar->vocabulary().size() - 1);
  uint64_t steps = 0;
  uint64_t tokens = 0;
  for (uint64_t seed = 0; seed < outputs; ++seed) {
    std::mt19937_64 random(seed);
    grammar::Matcher matcher(grammar, true);
    for (int i = 0; i < 300; ++i) {
      grammar::WorkBudget budget(UINT64_MAX);
      (void)matcher.settle(budget);
      steps += budget.used();
      ++tokens;
      const auto allowed = matcher.allowed();
      if (allowed == nullptr || matcher.must_end()) break;
      auto token = static_cast<TokenId>(random() % static_cast<uint64_t>(end + 1));
      while (!allowed->contains(token)) token = (token + 1) % (end + 1);
      if (token == end) break;
      matcher.append(token);
    }
  }
  return static_cast<double>(steps) / static_cast<double>(tokens);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Costs of constrained tool calls in each format");
  uint64_t outputs = 30;
  app.add_option("--outputs", outputs, "outputs per format and list of tools");
  std::string folder;
  app.add_option("tokenizer", folder, "folder with a tokenizer; without one the vocabulary is the bytes");
  CLI11_PARSE(app, argc, argv);
  const auto vocabulary = vocabulary_of(folder);
  fmt::print("{:17}", "states, ms, steps");
  for (const Tools& tools : all_tools()) fmt::print(" | {:^22}", tools.name);
  fmt::print("\n");
  for (size_t i = 0; i < text::kToolFormatCount; ++i) {
    const auto format = static_cast<text::ToolFormat>(i);
    fmt::print("{:17}", text::to_string(format));
    for (const Tools& tools : all_tools()) {
      const double begin = bench::thread_seconds();
      const auto definition = server::build_grammar(constraint_of(format, tools), server::SchemaEnforcement::kAll);
      const auto grammar =
          grammar::Grammar::compile(definition.value(), vocabulary, {static_cast<TokenId>(vocabulary->size() - 1)});
      const double ms = (bench::thread_seconds() - begin) * 1e3;
      if (grammar.has_error()) {
        fmt::print(" | {:22}", grammar.error().message.substr(0, 22));
        continue;
      }
      fmt::print(" | {:7} {:6.1f} {:7.1f}", grammar.value()->automaton().state_count(), ms,
                 mean_steps(grammar.value(), outputs));
    }
    fmt::print("\n");
  }
}
