#include "load/report.h"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <numeric>

#include "base/json.h"

namespace millrace::load {
namespace {

constexpr size_t kShownMessages = 3;

double to_ms(async::Duration duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}
double to_s(async::Duration duration) {
  return std::chrono::duration<double>(duration).count();
}

/// 0 for outputs of one token, which have no time per further token.
double tpot_ms(const RequestRecord& record) {
  if (record.output_tokens < 2) return 0.0;
  return to_ms(record.latency - record.ttft) / static_cast<double>(record.output_tokens - 1);
}

bool is_good(const RequestRecord& record, const Goodput& limits) {
  return (!limits.ttft_ms || to_ms(record.ttft) <= *limits.ttft_ms) &&
         (!limits.tpot_ms || tpot_ms(record) <= *limits.tpot_ms) &&
         (!limits.e2el_ms || to_ms(record.latency) <= *limits.e2el_ms);
}

/// Returns whether requests have a rate; without one they come when they can.
bool has_rate(const Options& options) {
  return !std::isinf(options.request_rate);
}

/// `sorted` is not empty.
double percentile_of(const std::vector<double>& sorted, double percent) {
  const double rank = percent / 100.0 * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(rank);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (sorted[above] - sorted[below]) * (rank - static_cast<double>(below));
}

void count_failure(std::map<std::string, FailureCount>& failures, const Failure& failure) {
  FailureCount& entry = failures[std::string(to_string(failure.kind))];
  ++entry.count;
  auto& messages = entry.messages;
  if (messages.size() >= kShownMessages) return;
  if (std::find(messages.begin(), messages.end(), failure.message) == messages.end()) {
    messages.push_back(failure.message);
  }
}

std::string now_utc() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

struct NamedStatistics {
  std::string_view key;
  std::string_view title;
  const Statistics& values;
};

std::array<NamedStatistics, 4> named(const Summary& summary) {
  return {{{"ttft", "TTFT", summary.ttft},
           {"tpot", "TPOT", summary.tpot},
           {"itl", "ITL", summary.itl},
           {"e2el", "E2EL", summary.e2el}}};
}

void write_setup(JsonWriter& json, const RunResult& result, const Options& options) {
  json.member("date", now_utc()).member("base_url", options.base_url).member("model", result.model);
  json.member("endpoint", options.endpoint == Endpoint::kChat ? "chat" : "completions");
  json.member("dataset", to_string(options.dataset));
  json.member("num_prompts", options.num_prompts).key("request_rate");
  if (has_rate(options)) {
    json.value(options.request_rate);
  } else {
    json.value("inf");
  }
  json.member("burstiness", options.burstiness).member("max_concurrency", options.max_concurrency);
  json.member("ramp_up_s", options.ramp_up_s).member("warmups", options.warmups);
  json.member("input_len", options.input_len).member("output_len", options.output_len);
  json.member("range_ratio", options.range_ratio).member("ignore_eos", options.ignore_eos);
  if (options.dataset == Dataset::kSharedPrefix) {
    json.member("prefix_len", options.prefix_len).member("num_prefixes", options.prefix_count);
    json.member("prefix_seed", options.prefix_seed);
  }
  if (options.dataset == Dataset::kMultiTurn) json.member("num_turns", options.turn_count);
  json.member("temperature", options.temperature).member("seed", options.seed);
  json.member("text", options.text).member("vocab_size", options.vocab_size).member("timeout_s", options.timeout_s);
  json.key("goodput").begin_object();
  for (const auto& [name, limit_ms] :
       {std::pair{"ttft", options.goodput.ttft_ms}, std::pair{"tpot", options.goodput.tpot_ms},
        std::pair{"e2el", options.goodput.e2el_ms}}) {
    if (limit_ms) json.member(name, *limit_ms);
  }
  json.end_object();
}

/// One entry per request, in order of arrival; 0 or an empty list where there is nothing, and the reason in `errors`.
void write_requests(JsonWriter& json, const RunResult& result) {
  const auto array = [&json, &result](const char* name, auto write) {
    json.key(name).begin_array();
    for (const RequestRecord& record : result.records) write(record);
    json.end_array();
  };
  array("input_lens", [&](const RequestRecord& record) { json.value(record.input_tokens); });
  array("output_lens", [&](const RequestRecord& record) { json.value(record.output_tokens); });
  array("due_times",
        [&](const RequestRecord& record) { json.value(record.finished ? to_s(record.due_at - result.start) : 0.0); });
  array("start_times",
        [&](const RequestRecord& record) { json.value(record.finished ? to_s(record.sent_at - result.start) : 0.0); });
  array("ttfts", [&](const RequestRecord& record) { json.value(to_s(record.ttft)); });
  array("e2els", [&](const RequestRecord& record) { json.value(to_s(record.latency)); });
  array("itls", [&](const RequestRecord& record) {
    json.begin_array();
    for (const async::Duration gap : record.gaps) json.value(to_s(gap));
    json.end_array();
  });
  array("errors", [&](const RequestRecord& record) {
    if (!record.finished) {
      json.value("not sent or interrupted");
    } else if (record.failure) {
      json.value(fmt::format("{}: {}", to_string(record.failure.kind), record.failure.message));
    } else {
      json.value("");
    }
  });
}

}  // namespace

Statistics statistics_of(std::vector<double> samples_ms, const std::vector<double>& percentiles) {
  Statistics out;
  out.percentiles.resize(percentiles.size());
  if (samples_ms.empty()) return out;
  std::sort(samples_ms.begin(), samples_ms.end());
  const auto count = static_cast<double>(samples_ms.size());
  out.mean = std::accumulate(samples_ms.begin(), samples_ms.end(), 0.0) / count;
  out.median = percentile_of(samples_ms, 50.0);
  double squares = 0.0;
  for (const double sample : samples_ms) squares += (sample - out.mean) * (sample - out.mean);
  out.std = std::sqrt(squares / count);
  for (size_t i = 0; i < percentiles.size(); ++i) out.percentiles[i] = percentile_of(samples_ms, percentiles[i]);
  return out;
}

double Summary::per_second(uint64_t count) const {
  return duration_s > 0.0 ? static_cast<double>(count) / duration_s : 0.0;
}

Summary summarize(const RunResult& result, const Options& options) {
  Summary summary;
  summary.duration_s = to_s(result.duration);
  std::vector<double> ttft;
  std::vector<double> tpot;
  std::vector<double> itl;
  std::vector<double> e2el;
  std::vector<double> late;
  for (const RequestRecord& record : result.records) {
    if (!record.finished) {
      ++summary.unsent;
      continue;
    }
    if (has_rate(options)) late.push_back(to_ms(record.sent_at - record.due_at));
    if (record.failure) {
      ++summary.failed;
      count_failure(summary.failures, record.failure);
      continue;
    }
    ++summary.completed;
    summary.total_input_tokens += record.input_tokens;
    summary.total_output_tokens += record.output_tokens;
    if (!record.counted_by_server) ++summary.counted_by_chunks;
    if (is_good(record, options.goodput)) ++summary.good;
    ttft.push_back(to_ms(record.ttft));
    if (record.output_tokens > 1) tpot.push_back(tpot_ms(record));
    for (const async::Duration gap : record.gaps) itl.push_back(to_ms(gap));
    e2el.push_back(to_ms(record.latency));
  }
  summary.ttft = statistics_of(std::move(ttft), options.percentiles);
  summary.tpot = statistics_of(std::move(tpot), options.percentiles);
  summary.itl = statistics_of(std::move(itl), options.percentiles);
  summary.e2el = statistics_of(std::move(e2el), options.percentiles);
  summary.late = statistics_of(std::move(late), {100.0});
  return summary;
}

std::string to_text(const Summary& summary, const RunResult& result, const Options& options) {
  std::string out;
  const auto line = [&out](std::string_view title, std::string_view value) {
    out += fmt::format("{:<28}{:>14}\n", title, value);
  };
  line("Requests completed", fmt::format("{}", summary.completed));
  line("Requests failed", fmt::format("{}", summary.failed));
  if (summary.unsent > 0) line("Requests interrupted", fmt::format("{}", summary.unsent));
  line("Duration, s", fmt::format("{:.2f}", summary.duration_s));
  line("In flight at once, at most", fmt::format("{}", result.max_running));
  if (has_rate(options)) {
    line("Sent late, mean, ms", fmt::format("{:.2f}", summary.late.mean));
    line("Sent late, at most, ms", fmt::format("{:.2f}", summary.late.percentiles.front()));
  }
  line("Input tokens", fmt::format("{}", summary.total_input_tokens));
  line("Output tokens", fmt::format("{}", summary.total_output_tokens));
  line("Requests/s", fmt::format("{:.2f}", summary.per_second(summary.completed)));
  if (options.goodput.any()) line("Good requests/s", fmt::format("{:.2f}", summary.per_second(summary.good)));
  line("Output tokens/s", fmt::format("{:.2f}", summary.per_second(summary.total_output_tokens)));
  line("Total tokens/s",
       fmt::format("{:.2f}", summary.per_second(summary.total_input_tokens + summary.total_output_tokens)));
  out += fmt::format("\n{:<6}{:>12}{:>12}{:>12}", "ms", "mean", "median", "std");
  for (const double percent : options.percentiles) out += fmt::format("{:>12}", fmt::format("p{:g}", percent));
  out += '\n';
  for (const NamedStatistics& entry : named(summary)) {
    out += fmt::format("{:<6}{:>12.2f}{:>12.2f}{:>12.2f}", entry.title, entry.values.mean, entry.values.median,
                       entry.values.std);
    for (const double value : entry.values.percentiles) out += fmt::format("{:>12.2f}", value);
    out += '\n';
  }
  if (summary.counted_by_chunks > 0) {
    out += fmt::format("\n{} requests came without usage: their output tokens are chunks, their input tokens {}.\n",
                       summary.counted_by_chunks, options.text ? "words" : "the ids sent");
  }
  for (const auto& [kind, failures] : summary.failures) {
    out += fmt::format("\n{} failed: {}\n", failures.count, kind);
    for (const std::string& message : failures.messages) out += fmt::format("  {}\n", message);
  }
  return out;
}

std::string to_json(const Summary& summary, const RunResult& result, const Options& options) {
  std::string out;
  JsonWriter json(out);
  json.begin_object();
  write_setup(json, result, options);
  json.member("interrupted", result.interrupted).member("duration", summary.duration_s);
  json.member("completed", summary.completed).member("failed", summary.failed);
  json.member("total_input_tokens", summary.total_input_tokens);
  json.member("total_output_tokens", summary.total_output_tokens);
  json.member("counted_by_chunks", summary.counted_by_chunks);
  json.member("max_running", result.max_running);
  json.member("request_throughput", summary.per_second(summary.completed)).key("request_goodput");
  if (options.goodput.any()) {
    json.value(summary.per_second(summary.good));
  } else {
    json.null();
  }
  json.member("output_throughput", summary.per_second(summary.total_output_tokens));
  json.member("total_token_throughput", summary.per_second(summary.total_input_tokens + summary.total_output_tokens));
  for (const NamedStatistics& entry : named(summary)) {
    json.member(fmt::format("mean_{}_ms", entry.key), entry.values.mean);
    json.member(fmt::format("median_{}_ms", entry.key), entry.values.median);
    json.member(fmt::format("std_{}_ms", entry.key), entry.values.std);
    for (size_t i = 0; i < entry.values.percentiles.size(); ++i) {
      json.member(fmt::format("p{:g}_{}_ms", options.percentiles[i], entry.key), entry.values.percentiles[i]);
    }
  }
  if (has_rate(options)) {
    json.member("mean_late_ms", summary.late.mean).member("max_late_ms", summary.late.percentiles.front());
  }
  json.key("failures").begin_object();
  for (const auto& [kind, failures] : summary.failures) json.member(kind, failures.count);
  json.end_object();
  write_requests(json, result);
  json.end_object();
  out += '\n';
  return out;
}

}  // namespace millrace::load
