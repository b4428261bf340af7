#include "text/chat_template/chat_template.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <random>

#include "text/json_support.h"
#include "support/mentions.h"
#include "support/paths.h"
#include "support/skip.h"
#include "support/temporary_folder.h"
#include "support/test_seed.h"

using namespace millrace;
using namespace millrace::text;
using simdjson::dom::element;

namespace {

/// Renders `source` with the members of `kwargs` as its variables.
Result<std::string> render(std::string_view source, std::string_view kwargs = "{}") {
  const auto made = ChatTemplate::from_source(source);
  if (made.has_error()) return made.error();
  ChatInput input;
  input.messages_json = "[]";
  input.kwargs_json = kwargs;
  return (*made)->render(input);
}

std::string error_of(std::string_view source, std::string_view kwargs = "{}") {
  const auto rendered = render(source, kwargs);
  return rendered.has_error() ? rendered.error().message : "rendered: " + *rendered;
}

/// Returns the prompt of a short conversation with an effort.
std::string with_effort(std::string_view source, std::string_view effort) {
  const auto made = ChatTemplate::from_source(source);
  REQUIRE(made.has_value());
  ChatInput input;
  input.messages_json = R"([{"role":"user","content":"hi"}])";
  input.reasoning_effort = effort;
  const auto text = (*made)->render(input);
  REQUIRE(text.has_value());
  return *text;
}

}  // namespace

TEST_CASE("templates render as jinja2 does") {
  const std::string json = test::read_file(test::source_dir() / "tests/text/jinja_cases.json");
  simdjson::dom::parser parser;
  const element document = parser.parse(json);
  const std::string context = test::member_json(document, "context");
  size_t count = 0;
  for (const element item : simdjson::dom::array(document["cases"])) {
    const std::string source = test::member_text(item, "template");
    CAPTURE(source);
    const auto rendered = render(source, context);
    if (test::member_json(item, "error").empty()) {
      if (rendered.has_error()) FAIL_CHECK(rendered.error().message);
      if (rendered.has_value()) CHECK(*rendered == test::member_text(item, "expected"));
    } else {
      CHECK(rendered.has_error());
    }
    ++count;
  }
  REQUIRE(count > 500);
}

TEST_CASE("chat templates of real models render as transformers does") {
  const auto dir = test::shared_data_dir() / "chat_templates";
  if (!std::filesystem::exists(dir)) SKIP_TEST("the shared data folder is absent");
  size_t count = 0;
  for (const auto& model : std::filesystem::directory_iterator(dir)) {
    const auto made = ChatTemplate::load(model.path());
    if (made.has_error()) FAIL(made.error().message);
    for (const auto& file : std::filesystem::directory_iterator(model.path() / "cases")) {
      CAPTURE(file.path().string());
      simdjson::dom::parser parser;
      const element given = parser.load(file.path().string())["input"];
      const std::string messages = test::member_json(given, "messages");
      const std::string tools = test::member_json(given, "tools");
      const std::string everything = simdjson::to_string(given);
      ChatInput input;
      input.messages_json = messages;
      input.tools_json = tools;
      input.kwargs_json = everything;
      const auto rendered = (*made)->render(input);
      if (rendered.has_error()) FAIL(rendered.error().message);
      const auto expected = model.path() / "expected" / file.path().filename().replace_extension(".txt");
      CHECK(*rendered == test::read_file(expected));
      ++count;
    }
  }
  REQUIRE(count == 27);
}

TEST_CASE("templates see numbers of any size as Python does") {
  const std::string kwargs =
      R"({"u":18446744073709551615,"b":-1000000000000000019884624838656,"f":1.50,"e":1e2,"i":9223372036854775807,)"
      R"("inf":1e400,"l":[18446744073709551616]})";
  const auto shown = [&](const std::string& expression) { return error_of("{{ " + expression + " }}", kwargs); };
  CHECK(shown("u") == "rendered: 18446744073709551615");
  CHECK(shown("u | tojson") == "rendered: 18446744073709551615");
  CHECK(shown("l | tojson") == "rendered: [18446744073709551616]");
  CHECK(shown("l") == "rendered: [18446744073709551616]");
  CHECK(shown("{'b': b} | tojson(indent=1)") == "rendered: {\n \"b\": -1000000000000000019884624838656\n}");
  CHECK(shown("f | tojson") == "rendered: 1.5");
  CHECK(shown("e") == "rendered: 100.0");
  CHECK(shown("i | tojson") == "rendered: 9223372036854775807");
  CHECK(shown("inf | tojson") == "rendered: Infinity");
  CHECK(shown("u ~ '' | string") == "rendered: 18446744073709551615");
  CHECK(shown("u | int") == "rendered: 18446744073709551615");
  CHECK(shown("u | string | length") == "rendered: 20");
  CHECK(shown("b | abs") == "rendered: 1000000000000000019884624838656");
  CHECK(shown("-u") == "rendered: -18446744073709551615");
  CHECK(shown("-b") == "rendered: 1000000000000000019884624838656");
  CHECK(shown("+u | round(2)") == "rendered: 18446744073709551615");
  CHECK(shown("u / 1") == "rendered: 1.8446744073709552e+19");
  CHECK(shown("u * 1.0") == "rendered: 1.8446744073709552e+19");
  CHECK(shown("u + 1") == "chat template, line 1: integer overflow");
  CHECK(shown("'%d and {:,}'.format(u) % u") == "rendered: 18446744073709551615 and 18,446,744,073,709,551,615");
  CHECK(shown("[u is number, u is integer, u is float, u is string, u is mapping]") ==
        "rendered: [True, True, False, False, False]");
  CHECK(shown("[u == u, u == l[0], u < l[0], b < u, u > 5, 5 > u, b < 5, u == 5, u in [u], not u]") ==
        "rendered: [True, False, True, True, True, False, True, False, True, False]");
  CHECK(shown("[l[0], u, 5, b] | sort") ==
        "rendered: [-1000000000000000019884624838656, 5, 18446744073709551615, 18446744073709551616]");
}

/// A whole config as transformers writes it: with its number for "no limit", and what Python writes for no number.
constexpr std::string_view kCompleteConfig =
    "\xEF\xBB\xBF"
    R"({
  "add_bos_token": true,
  "added_tokens_decoder": {
    "7": {"content": "<s>", "lstrip": false, "normalized": false, "rstrip": false, "special": true}
  },
  "bos_token": "<s>",
  "chat_template": "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}",
  "clean_up_tokenization_spaces": false,
  "eos_token": {"__type": "AddedToken", "content": "</s>", "lstrip": false, "special": true},
  "max_length": Infinity,
  "model_input_names": ["input_ids", "attention_mask"],
  "model_max_length": 1000000000000000019884624838656,
  "padding_ratio": NaN,
  "smallest": -Infinity,
  "sp_model_kwargs": {},
  "tokenizer_class": "PreTrainedTokenizerFast",
  "unk_token": null
}
)";

TEST_CASE("a complete tokenizer_config.json is read") {
  const auto made = ChatTemplate::from_source("", kCompleteConfig);
  if (made.has_error()) FAIL(made.error().message);
  ChatInput input;
  input.messages_json = R"([{"role":"user","content":"hello"}])";
  CHECK((*made)->render(input).value() == "<s>hello");
  const auto tokens = ChatTemplate::tokens_of(kCompleteConfig);
  CHECK(tokens.value().at("eos_token") == "</s>");
  const std::string_view cut = kCompleteConfig.substr(0, kCompleteConfig.find("1000000") + 4);
  CHECK(ChatTemplate::from_source("", cut).error().message ==
        "chat template: tokenizer_config.json: line 12, column 27: the text ends, wanted ',' or '}'");
}

TEST_CASE("complete tokenizer_config.json of real models are read") {
  const auto dir = test::shared_data_dir() / "complete";
  if (!std::filesystem::exists(dir)) SKIP_TEST("the shared data folder is absent");
  size_t count = 0;
  for (const auto& model : std::filesystem::directory_iterator(dir)) {
    if (!model.is_directory()) continue;
    CAPTURE(model.path().string());
    const std::string config = test::read_file(model.path() / "tokenizer_config.json");
    CHECK(config.find("1000000000000000019884624838656") != std::string::npos);
    const auto made = ChatTemplate::load(model.path());
    const bool has_template = config.find("\"chat_template\"") != std::string::npos;
    if (made.has_error() && has_template) FAIL_CHECK(made.error().message);
    if (made.has_error() && !has_template) CHECK(made.error().code == ErrorCode::kNotFound);
    const auto tokens = ChatTemplate::tokens_of(config);
    REQUIRE(tokens.has_value());
    CHECK(tokens->contains("eos_token"));
    ++count;
  }
  CHECK(count >= 9);
}

TEST_CASE("errors of a template name its line") {
  CHECK(error_of("a\nb\n{{ missing.x }}") == "chat template, line 3: 'missing' is undefined");
  CHECK(error_of("\n{% if x %}\n{% endfi %}") == "chat template, line 3: Encountered unknown tag 'endfi'");
  CHECK(error_of("{% for x in [1] %}\n\n{{ raise_exception('roles must alternate') }}{% endfor %}") ==
        "chat template, line 3: roles must alternate");
  CHECK(error_of("x\n\n{{ 'never closed }}") == "chat template, line 3: a string does not end");
  CHECK(error_of("{{ d.a.b }}", R"({"d": {}})") == "chat template, line 1: 'dict object' has no attribute 'a'");
  CHECK(error_of("\n{{ 'a' | frobnicate }}") == "chat template, line 2: No filter named 'frobnicate'.");
  CHECK(error_of("{% include 'x' %}") == "chat template, line 1: Encountered unknown tag 'include'");
  const auto unparsable = ChatTemplate::from_source("{% if %}");
  REQUIRE(unparsable.has_error());
  CHECK(unparsable.error().code == ErrorCode::kData);
}

TEST_CASE("hostile templates end with an error") {
  const auto repeated = [](std::string_view text, size_t count) {
    std::string out;
    for (size_t i = 0; i < count; ++i) out += text;
    return out;
  };
  // Each takes seconds until its work is more than a template may do, so that a run tries three of them.
  auto drawn = [random = std::mt19937_64(test::test_seed())](std::vector<const char*> uses) mutable {
    std::shuffle(uses.begin(), uses.end(), random);
    uses.resize(3);
    return uses;
  };
  INFO("seed " << test::test_seed());
  const std::string nested_loops = repeated("{% for a in range(100000) %}", 4) + repeated("{% endfor %}", 4);
  CHECK(error_of(nested_loops).find("than it may") != std::string::npos);
  CHECK(error_of("{{ 'a' * 10000000000 }}").find("memory") != std::string::npos);
  CHECK(
      error_of("{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}")
          .find("memory") != std::string::npos);
  CHECK(error_of("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}").find("recursion") != std::string::npos);
  CHECK(error_of("{% set l = [1] %}{% set _ = l.append(l) %}{{ l }}").find("nested") != std::string::npos);
  CHECK(error_of("{% set l = [1] %}{% for x in l %}{% set _ = l.append(x) %}{% endfor %}{{ l|length }}") ==
        "rendered: 2");
  CHECK(error_of("{{ " + repeated("(", 5000) + "1" + repeated(")", 5000) + " }}").find("deep") != std::string::npos);
  CHECK(error_of(repeated("{% if 1 %}", 5000)).find("deep") != std::string::npos);
  CHECK(error_of("{{ 1" + repeated(" + 1", 5000) + " }}").find("operators") != std::string::npos);
  CHECK(error_of("{{ x" + repeated(".y", 5000) + " }}").find("operators") != std::string::npos);
  CHECK(error_of("{{ x" + repeated("|upper", 5000) + " }}").find("operators") != std::string::npos);
  CHECK(error_of("{{ 9223372036854775807 + 1 }}").find("overflow") != std::string::npos);
  CHECK(error_of("{{ (-9223372036854775807 - 1) // -1 }}").find("overflow") != std::string::npos);
  CHECK(error_of("{{ ('a' * 1000000 ~ 'b') in ('a' * 100000000) }}").find("may") != std::string::npos);
  CHECK(error_of("{{ x }}", repeated("[", 2000)).find("chat template") == 0);
  // A value of 2^60 leaves, many of which are one object.
  const std::string shared = "{% set a = [0] %}{% set b = [0] %}{% set d = {'k': 0} %}" +
                             repeated("{% set a = [a, a] %}{% set b = [b, b] %}{% set d = {'k': d, 'l': d} %}", 60);
  for (const char* use : drawn({"a == b", "a in [b]", "a < b", "[a, b] | unique | list", "d == d", "a", "d",
                                "a is lower", "a | tojson", "{(a,): 1}[(b,)]"})) {
    INFO(use);
    const std::string error = error_of(shared + "{{ " + use + " }}");
    CHECK(error.find("chat template, line 1") == 0);
  }
  // Work on long strings that makes nothing new.
  const std::string strings = "{% set s = 'a' * 3000000 %}{% set t = 'a' * 3000000 %}{% set p = ' ' * 3000000 %}";
  for (const char* use : drawn({"s == t", "s in [t]", "[s, t] | sort", "s is eq t", "s.isalpha()", "s is lower",
                                "s.startswith(t)", "p | trim", "[s] == [t]"})) {
    INFO(use);
    const std::string loop = "{% for i in range(100000) %}{% set x = " + std::string(use) + " %}{% endfor %}";
    CHECK(error_of(strings + loop).find("it may") != std::string::npos);
  }
}

TEST_CASE("undefined and tools and special tokens match transformers") {
  const auto made = ChatTemplate::from_source(
      "{{ bos_token }}|{{ tools is none }}|{{ documents is none }}|{{ add_generation_prompt }}|{{ pad_token is defined "
      "}}",
      R"({"bos_token": {"content": "<s>"}, "eos_token": "</s>"})");
  REQUIRE(made.has_value());
  ChatInput input;
  input.messages_json = "[]";
  input.add_generation_prompt = true;
  CHECK((*made)->render(input).value() == "<s>|True|True|True|False");
}

TEST_CASE("named templates: tools choose tool_use") {
  const auto made = ChatTemplate::from_source(
      "", R"({"chat_template": [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]})");
  REQUIRE(made.has_value());
  ChatInput input;
  input.messages_json = "[]";
  CHECK((*made)->render(input).value() == "D");
  input.tools_json = "[]";
  CHECK((*made)->render(input).value() == "T");
  input.template_name = "rag";
  CHECK((*made)->render(input).error().message ==
        "chat template: there is no template named 'rag', wanted one of default, tool_use");
  CHECK(ChatTemplate::from_source("", "{}").error().code == ErrorCode::kNotFound);
}

TEST_CASE("continue_final_message ends the prompt with the message") {
  const auto made =
      ChatTemplate::from_source("{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}<end>\n{% endfor %}");
  REQUIRE(made.has_value());
  ChatInput input;
  input.continue_final_message = true;
  input.messages_json = R"([{"role": "user", "content": "Sure"}, {"role": "assistant", "content": "Sure, "}])";
  CHECK((*made)->render(input).value() == "<user>Sure<end>\n<assistant>Sure,");
  input.messages_json = R"([{"role": "user", "content": [{"type": "image"}]}])";
  CHECK((*made)->render(input).error().message.find("no text") != std::string::npos);
}

TEST_CASE("continue_final_message is linear for partly shown messages") {
  const auto made =
      ChatTemplate::from_source("{% for m in messages %}{{ m.content.split('</think>')[-1] }}{% endfor %}");
  REQUIRE(made.has_value());
  const auto outcome = [&](const std::string& user, const std::string& assistant) {
    const std::string messages =
        R"([{"role": "user", "content": ")" + user + R"("}, {"role": "assistant", "content": ")" + assistant + R"("}])";
    ChatInput input;
    input.continue_final_message = true;
    input.messages_json = messages;
    const auto rendered = (*made)->render(input);
    return rendered.has_error() ? rendered.error().message : *rendered;
  };
  const std::string many(10 << 20, 'a');
  const std::string half(5 << 20, 'a');
  const bool is_shortened = outcome(many, half + "</think>x") == many + "x";
  CHECK(is_shortened);
  const bool is_whole = outcome(many, half) == many + half;
  CHECK(is_whole);
  CHECK(outcome("xyxyx", "yx") == "xyxyxyx");
  CHECK(outcome("xyxyx", " ") == "xyxyx ");
}

TEST_CASE("continue_final_message refuses templates without the message") {
  const auto made = ChatTemplate::from_source("{% for m in messages %}{{ m.content[:3] }}{% endfor %}");
  ChatInput input;
  input.continue_final_message = true;
  input.messages_json = R"([{"role": "assistant", "content": "hidden"}])";
  CHECK((*made)->render(input).error().message.find("does not show") != std::string::npos);
  input.messages_json = "[]";
  CHECK((*made)->render(input).error().message.find("no final message") != std::string::npos);
}

TEST_CASE("A model folder holds further templates selected by name") {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / fmt::format("millrace-templates-{}", static_cast<int>(getpid()));
  std::filesystem::create_directories(folder / "additional_chat_templates");
  const auto write = [&](const std::string& name, std::string_view text) { std::ofstream(folder / name) << text; };
  write("tokenizer_config.json", R"({"bos_token": "<s>", "chat_template": "C{{ bos_token }}"})");
  write("additional_chat_templates/tool_use.jinja", "T{{ bos_token }}");
  write("additional_chat_templates/rag.jinja", "R{{ documents | length }}");
  write("additional_chat_templates/notes.txt", "{% not a template");
  ChatInput input;
  input.messages_json = "[]";
  const auto with_config = ChatTemplate::load(folder).value();
  CHECK(with_config->template_names() == std::vector<std::string>{"default", "rag", "tool_use"});
  CHECK(with_config->render(input).value() == "C<s>");
  write("chat_template.jinja", "F");
  const auto with_file = ChatTemplate::load(folder).value();
  CHECK(with_file->render(input).value() == "F");
  CHECK_FALSE(with_file->supports_documents(input));
  input.tools_json = "[]";
  CHECK(with_file->render(input).value() == "T<s>");
  input.template_name = "rag";
  input.documents_json = R"([{"text": "a"}])";
  CHECK(with_file->render(input).value() == "R1");
  CHECK(with_file->supports_documents(input));
  write("additional_chat_templates/rag.jinja", "{% if %}");
  CHECK(ChatTemplate::load(folder).error().code == ErrorCode::kData);
  std::filesystem::remove_all(folder);
}

TEST_CASE("The template of a processor is used where there is no other") {
  const test::TemporaryFolder folder;
  CHECK(ChatTemplate::load(folder.path()).error().code == ErrorCode::kNotFound);
  folder.write("tokenizer_config.json", R"({"bos_token": "<s>"})");
  folder.write("chat_template.json", R"({"chat_template": "P{{ bos_token }}"})");
  ChatInput input;
  input.messages_json = "[]";
  CHECK(ChatTemplate::load(folder.path()).value()->render(input).value() == "P<s>");
  folder.write("tokenizer_config.json", R"({"bos_token": "<s>", "chat_template": "C"})");
  CHECK(ChatTemplate::load(folder.path()).value()->render(input).value() == "C");
  folder.write("tokenizer_config.json", "{}");
  for (const char* none : {"{}", R"({"chat_template": null})"}) {
    folder.write("chat_template.json", none);
    CHECK(ChatTemplate::load(folder.path()).error().code == ErrorCode::kNotFound);
  }
  folder.write("chat_template.json", R"({"chat_template": 7})");
  const Error error = ChatTemplate::load(folder.path()).error();
  CHECK(error.code == ErrorCode::kData);
  CHECK_THAT(error.message, test::Mentions(folder.path().string(), "chat_template.json"));
}

TEST_CASE("strftime_now formats the clock of the caller") {
  const auto made = ChatTemplate::from_source("{{ strftime_now('%d %B %Y') }}{{ strftime_now('') }}");
  REQUIRE(made.has_value());
  ChatInput input;
  input.messages_json = "[]";
  input.now.tm_year = 124;
  input.now.tm_mon = 6;
  input.now.tm_mday = 26;
  CHECK((*made)->render(input).value() == "26 July 2024");
}

TEST_CASE("the switch of thinking has both names that templates know") {
  const auto made = ChatTemplate::from_source(
      "{{ enable_thinking is defined }} {{ thinking is defined }} {{ thinking }} {{ enable_thinking }}");
  REQUIRE(made.has_value());
  ChatInput input;
  input.messages_json = R"([{"role":"user","content":"hi"}])";
  CHECK((*made)->render(input).value().starts_with("False False"));
  for (const bool thinks : {false, true}) {
    input.enable_thinking = thinks;
    CHECK((*made)->render(input).value() == (thinks ? "True True True True" : "True True False False"));
  }
  input.kwargs_json = R"({"thinking":"low"})";
  CHECK((*made)->render(input).value() == "True True low True");
}

TEST_CASE("A template that prints the effort gets low for none") {
  constexpr std::string_view kPrints =
      "{% if not reasoning_effort %}{% set reasoning_effort = 'medium' %}{% endif %}"
      "Reasoning: {{ reasoning_effort }}|{% for m in messages %}{{ m.content }}{% endfor %}";
  CHECK(with_effort(kPrints, "none") == "Reasoning: low|hi");
  CHECK(with_effort(kPrints, "high") == "Reasoning: high|hi");
  CHECK(with_effort(kPrints, "") == "Reasoning: medium|hi");
  constexpr std::string_view kKnows =
      "{% if reasoning_effort == 'none' %}<think></think>{% else %}Reasoning: {{ reasoning_effort }}|{% endif %}"
      "{% for m in messages %}{{ m.content }}{% endfor %}";
  CHECK(with_effort(kKnows, "none") == "<think></think>hi");
  CHECK(with_effort(kKnows, "high") == "Reasoning: high|hi");
  constexpr std::string_view kCompares =
      "{% if reasoning_effort == 'none' %}quick{% else %}slow{% endif %}{% for m in messages %}{{ m.content }}{% "
      "endfor %}";
  CHECK(with_effort(kCompares, "none") == "quickhi");
}

TEST_CASE("A template that refuses an effort gets the nearest one") {
  const auto taking = [](std::string_view words) {
    return fmt::format(
        "{{% if reasoning_effort is defined and reasoning_effort not in {} %}}"
        "{{{{ raise_exception('unknown effort') }}}}{{% endif %}}"
        "{{{{ reasoning_effort or 'nothing' }}}}{{% for m in messages %}}{{% endfor %}}",
        words);
  };
  const std::string hunyuan = taking("['no_think', 'low', 'high']");
  CHECK(with_effort(hunyuan, "") == "nothing");
  CHECK(with_effort(hunyuan, "none") == "no_think");
  CHECK(with_effort(hunyuan, "minimal") == "low");
  CHECK(with_effort(hunyuan, "low") == "low");
  CHECK(with_effort(hunyuan, "medium") == "high");
  CHECK(with_effort(hunyuan, "max") == "high");
  const std::string mistral = taking("['none', 'high']");
  CHECK(with_effort(mistral, "none") == "none");
  CHECK(with_effort(mistral, "minimal") == "high");
  CHECK(with_effort(mistral, "xhigh") == "high");
  CHECK(with_effort(taking("['low', 'medium', 'high']"), "none") == "nothing");
  CHECK(with_effort(taking("['other']"), "high") == "nothing");
}

TEST_CASE("A template may write its tags by a format") {
  constexpr std::string_view kSource =
      "{%- set HYTK = ':opensource' %}{%- if tools %}{{- '<tool_calls{}>'.format(HYTK) }}"
      "{{- '<tool_call{}>'.format(HYTK) + tools[0].function.name + '<tool_sep{}>'.format(HYTK) }}{%- endif %}"
      "{%- for m in messages %}{{- m.content }}{%- endfor %}"
      "{%- if add_generation_prompt %}{{- '<think{}></think{}>'.format(HYTK, HYTK) }}{%- endif %}";
  const auto made = ChatTemplate::from_source(kSource);
  REQUIRE(made.has_value());
  CHECK((*made)->tool_format() == ToolFormat::kHunyuan3);
  CHECK((*made)->reasoning_format() == ReasoningFormat::kHunyuan3);
  ChatInput input;
  input.messages_json = R"([{"role":"user","content":"hi"}])";
  input.tools_json = R"([{"type":"function","function":{"name":"f"}}])";
  input.add_generation_prompt = true;
  const std::string text = (*made)->render(input).value();
  CHECK(text ==
        "<tool_calls:opensource><tool_call:opensource>f<tool_sep:opensource>hi"
        "<think:opensource></think:opensource>");
  CHECK(prompt_closes_reasoning(text, ReasoningFormat::kHunyuan3));
}
