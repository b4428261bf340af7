#include "load/options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <iostream>

namespace millrace::load {
namespace {

const char kDescription[] =
    "Drives a server that speaks the OpenAI API over plain HTTP with streaming requests and measures it.\n"
    "  TTFT  from sending the request to the first chunk with tokens: a text, thoughts, calls or ids; one\n"
    "        that names the role or the end alone has none\n"
    "  ITL   the gaps between such chunks, pooled over all requests\n"
    "  TPOT  (E2EL - TTFT) / (output tokens - 1), per request\n"
    "  E2EL  from sending the request to its last chunk with choices\n"
    "None has what a request waited before it was sent: for --max-concurrency, a connection, or this program. With\n"
    "--request-rate the report says how late requests were sent, and the result file has due_times and start_times.\n"
    "Requests go out on connections that are open already. Token counts are those of the server's usage; without\n"
    "usage, chunks with tokens are counted and the report says so. Exit code 0: every request completed; 1: otherwise.";

/// The texts that need another step after CLI11 has read them.
struct RawOptions {
  std::vector<std::string> goodput;
  std::string request_rate = "inf";
  std::string endpoint = "completions";
  std::string dataset = "random";
  std::optional<uint64_t> prefix_seed;
};

/// One of several words.
CLI::Validator one_of(std::vector<std::string> words) {
  return CLI::Validator(
      [words = std::move(words)](std::string& text) {
        if (std::find(words.begin(), words.end(), text) != words.end()) return std::string();
        return fmt::format("found '{}', wanted {}", text, fmt::join(words, " or "));
      },
      "");
}

/// A bound without its text, which would crowd the help.
CLI::Validator bounded(double low, double high) {
  return CLI::Validator(
      [low, high](std::string& text) {
        double value = 0.0;
        if (CLI::detail::lexical_cast(text, value) && value >= low && value <= high) return std::string();
        return fmt::format("found '{}', wanted a number from {:g} to {:g}", text, low, high);
      },
      "");
}
constexpr double kCountLimit = 1e8;
constexpr double kNumberLimit = 1e9;
constexpr double kMinPositive = 1e-6;

void add_server_options(CLI::App& app, Options& options, RawOptions& raw) {
  app.add_option("--base-url", options.base_url, "Where the server listens: http://HOST[:PORT][/PREFIX]")
      ->capture_default_str()
      ->type_name("URL");
  app.add_option("--model", options.model, "Model to ask for (default: the first of /v1/models)")->type_name("NAME");
  app.add_option("--endpoint", raw.endpoint, "completions or chat")
      ->check(one_of({"completions", "chat", "/v1/completions", "/v1/chat/completions"}))
      ->capture_default_str()
      ->type_name("NAME");
  app.add_option("--api-key", options.api_key, "Sent as 'Authorization: Bearer KEY'")->type_name("KEY");
  app.add_option("--timeout-s", options.timeout_s, "A request that takes longer has failed")
      ->check(bounded(kMinPositive, kNumberLimit))
      ->capture_default_str()
      ->type_name("S");
}

void add_traffic_options(CLI::App& app, Options& options, RawOptions& raw) {
  app.add_option("--num-prompts", options.num_prompts, "Requests to measure")
      ->check(bounded(1, kCountLimit))
      ->capture_default_str()
      ->type_name("N");
  app.add_option("--request-rate", raw.request_rate, "Arrivals per second; inf: all at once")
      ->capture_default_str()
      ->type_name("R");
  app.add_option("--burstiness", options.burstiness,
                 "Gaps between arrivals are gamma distributed with this shape: 1 is a Poisson process, less is\n"
                 "burstier, more is more even")
      ->check(bounded(kMinPositive, kNumberLimit))
      ->capture_default_str()
      ->type_name("SHAPE");
  app.add_option("--max-concurrency", options.max_concurrency,
                 "Requests in flight at most; with --request-rate inf this is a closed loop (0: no limit)")
      ->check(bounded(0, kCountLimit))
      ->capture_default_str()
      ->type_name("N");
  app.add_option("--ramp-up-s", options.ramp_up_s,
                 "Seconds over which the rate, or with --request-rate inf the concurrency, grows linearly to its value")
      ->check(bounded(0.0, kNumberLimit))
      ->capture_default_str()
      ->type_name("S");
  app.add_option("--warmups", options.warmups, "Requests sent before the measurement and not counted")
      ->capture_default_str()
      ->type_name("N");
}

void add_prompt_options(CLI::App& app, Options& options, RawOptions& raw) {
  app.add_option("--dataset", raw.dataset,
                 "random; shared-prefix: prompts in groups that begin alike; multi-turn: conversations, each request\n"
                 "with all that was said before. All begin before any has its second turn; implies --text")
      ->check(one_of({"random", "shared-prefix", "multi-turn"}))
      ->capture_default_str()
      ->type_name("NAME");
  app.add_option("--input-len", options.input_len,
                 "Prompt tokens (words with --text), or those of each turn; the shared prefix comes on top")
      ->check(bounded(1, kCountLimit))
      ->capture_default_str()
      ->type_name("N");
  app.add_option("--output-len", options.output_len, "Output tokens asked for (max_tokens)")
      ->check(bounded(1, kCountLimit))
      ->capture_default_str()
      ->type_name("N");
  app.add_option("--range-ratio", options.range_ratio,
                 "R: both lengths are drawn uniformly from LEN*(1-R) to LEN*(1+R)")
      ->check(bounded(0.0, 1.0))
      ->capture_default_str()
      ->type_name("R");
  app.add_option("--prefix-len", options.prefix_len, "shared-prefix: tokens that a group shares")
      ->capture_default_str()
      ->type_name("N");
  app.add_option("--num-prefixes", options.prefix_count, "shared-prefix: groups")
      ->check(bounded(1, kCountLimit))
      ->capture_default_str()
      ->type_name("N");
  app.add_option("--prefix-seed", raw.prefix_seed, "shared-prefix: the prefixes depend on it alone (default: --seed)")
      ->type_name("N");
  app.add_option("--num-turns", options.turn_count,
                 "multi-turn: requests per conversation; --num-prompts counts them all")
      ->check(bounded(1, kCountLimit))
      ->capture_default_str()
      ->type_name("N");
  app.add_option("--vocab-size", options.vocab_size, "Prompts are token ids below this")
      ->check(bounded(1, 2e9))
      ->capture_default_str()
      ->type_name("N");
  app.add_flag("--text", options.text, "Send prompts as English words, for servers that take no ids (implied by chat)");
  app.add_flag("--ignore-eos", options.ignore_eos, "Ask for exactly the output length (an extension of the API)");
  app.add_option("--temperature", options.temperature, "Above 0 each request also carries a seed of its own")
      ->check(bounded(0.0, kNumberLimit))
      ->capture_default_str()
      ->type_name("T");
  app.add_option("--seed", options.seed, "Prompts, lengths and arrivals depend on it alone")
      ->capture_default_str()
      ->type_name("N");
}

void add_report_options(CLI::App& app, Options& options, RawOptions& raw) {
  app.add_option("--percentiles", options.percentiles, "Percentiles to report, e.g. 50,90,99.9 (default: 90,99)")
      ->delimiter(',')
      ->check(bounded(0.0, 100.0))
      ->type_name("LIST");
  app.add_option("--goodput", raw.goodput,
                 "Limits in ms, any of ttft:N tpot:N e2el:N; reports the requests per second that keep all of them")
      ->delimiter(',')
      ->type_name("LIST");
  app.add_option("--result-file", options.result_file, "Write all results there as JSON (times of requests in seconds)")
      ->type_name("FILE");
  app.add_flag("--quiet", options.quiet, "No progress line");
}

/// What CLI11 cannot check by itself.
Result<void> finish(Options& options, const RawOptions& raw) {
  auto target = parse_base_url(options.base_url);
  if (target.has_error()) return target.error();
  options.target = std::move(target).value();
  auto goodput = parse_goodput(raw.goodput);
  if (goodput.has_error()) return goodput.error();
  options.goodput = std::move(goodput).value();

  char* end = nullptr;
  options.request_rate = std::strtod(raw.request_rate.c_str(), &end);
  if (raw.request_rate.empty() || *end != '\0' || !(options.request_rate > 0.0)) {
    return make_error(ErrorCode::kInvalidArgument, "--request-rate: found '{}', wanted a positive number or inf",
                      raw.request_rate);
  }
  if (options.ramp_up_s > 0.0 && std::isinf(options.request_rate) && options.max_concurrency == 0) {
    return make_error(ErrorCode::kInvalidArgument, "--ramp-up-s needs --request-rate or --max-concurrency");
  }
  if (raw.endpoint.find("chat") != std::string::npos) options.endpoint = Endpoint::kChat;
  for (const Dataset dataset : {Dataset::kSharedPrefix, Dataset::kMultiTurn}) {
    if (raw.dataset == to_string(dataset)) options.dataset = dataset;
  }
  options.prefix_seed = raw.prefix_seed.value_or(options.seed);
  if (options.endpoint == Endpoint::kChat || options.dataset == Dataset::kMultiTurn) options.text = true;
  if (options.dataset == Dataset::kMultiTurn && options.num_prompts % options.turn_count != 0) {
    return make_error(ErrorCode::kInvalidArgument, "--num-prompts: found {}, wanted a multiple of --num-turns {}",
                      options.num_prompts, options.turn_count);
  }
  return {};
}

}  // namespace

std::string_view to_string(Dataset dataset) {
  switch (dataset) {
    case Dataset::kRandom: return "random";
    case Dataset::kSharedPrefix: return "shared-prefix";
    case Dataset::kMultiTurn: break;
  }
  return "multi-turn";
}

Result<Target> parse_base_url(std::string_view url) {
  constexpr std::string_view kScheme = "http://";
  if (!url.starts_with(kScheme)) {
    return make_error(ErrorCode::kInvalidArgument, "--base-url: found '{}', wanted http://HOST[:PORT][/PREFIX]", url);
  }
  std::string_view rest = url.substr(kScheme.size());
  Target target;
  if (const size_t slash = rest.find('/'); slash != rest.npos) {
    target.prefix = rest.substr(slash);
    rest = rest.substr(0, slash);
  }
  while (target.prefix.ends_with('/')) target.prefix.pop_back();
  if (target.prefix.ends_with("/v1")) target.prefix.resize(target.prefix.size() - 3);
  const size_t bracket = rest.rfind(']');  // [::1]:30000
  const size_t colon = rest.find(':', bracket == rest.npos ? 0 : bracket);
  target.port = colon == rest.npos ? "80" : std::string(rest.substr(colon + 1));
  target.host = rest.substr(0, colon);
  if (target.host.starts_with('[') && target.host.ends_with(']')) {
    target.host = target.host.substr(1, target.host.size() - 2);
  }
  if (target.host.empty() || target.port.empty()) {
    return make_error(ErrorCode::kInvalidArgument, "--base-url: '{}' names no host or no port", url);
  }
  return target;
}

Result<Goodput> parse_goodput(const std::vector<std::string>& limits) {
  Goodput goodput;
  for (const std::string& limit : limits) {
    const size_t colon = limit.find(':');
    const std::string name = limit.substr(0, colon);
    const std::string number = colon == limit.npos ? "" : limit.substr(colon + 1);
    char* end = nullptr;
    const double limit_ms = std::strtod(number.c_str(), &end);
    auto* slot = name == "ttft"   ? &goodput.ttft_ms
                 : name == "tpot" ? &goodput.tpot_ms
                 : name == "e2el" ? &goodput.e2el_ms
                                  : nullptr;
    if (slot == nullptr || number.empty() || *end != '\0' || !(limit_ms > 0.0)) {
      return make_error(ErrorCode::kInvalidArgument,
                        "--goodput: found '{}', wanted ttft:MS, tpot:MS or e2el:MS, each above 0", limit);
    }
    *slot = limit_ms;
  }
  return goodput;
}

ParsedOptions parse_options(int argc, const char* const* argv) {
  ParsedOptions parsed;
  RawOptions raw;
  CLI::App app(kDescription, "load");
  app.get_formatter()->column_width(30);
  add_server_options(app, parsed.options, raw);
  add_traffic_options(app, parsed.options, raw);
  add_prompt_options(app, parsed.options, raw);
  add_report_options(app, parsed.options, raw);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help) {
    app.exit(help);
    parsed.exit_code = 0;
    return parsed;
  } catch (const CLI::ParseError& error) {
    std::cerr << "load: " << error.what() << " (see --help)\n";
    parsed.exit_code = 1;
    return parsed;
  }
  if (const auto finished = finish(parsed.options, raw); finished.has_error()) {
    std::cerr << "load: " << finished.error().message << "\n";
    parsed.exit_code = 1;
  }
  return parsed;
}

}  // namespace millrace::load
