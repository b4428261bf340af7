#include "sim/workload.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "base/json_value.h"
#include "base/random.h"
#include "base/text_file.h"

namespace millrace::sim {
namespace {

/// The latest start of a request, in seconds: some four months.
constexpr double kLatestStart = 1e7;

template <class T>
Result<std::vector<T>> read_array(JsonObject fields, std::string_view name, std::string_view wanted) {
  JsonArray list;
  if (!fields[name].get(list)) return make_error(ErrorCode::kData, "{}: wanted an array", name);
  std::vector<T> values;
  for (const JsonValue entry : list) {
    if (!entry.get(values.emplace_back()) || values.back() < 0) {
      return make_error(ErrorCode::kData, "{}[{}]: wanted {}", name, values.size() - 1, wanted);
    }
  }
  return values;
}

Result<std::vector<int64_t>> read_lengths(JsonObject fields, std::string_view name) {
  auto lengths = read_array<int64_t>(fields, name, "a whole number that is not negative");
  if (lengths.has_error()) return lengths;
  for (size_t i = 0; i < lengths->size(); ++i) {
    if ((*lengths)[i] > std::numeric_limits<int32_t>::max()) {
      return make_error(ErrorCode::kData, "{}[{}]: {} tokens, wanted at most {}", name, i, (*lengths)[i],
                        std::numeric_limits<int32_t>::max());
    }
  }
  return lengths;
}

Result<uint32_t> read_limit(JsonObject fields) {
  JsonValue value;
  if (!fields["max_concurrency"].get(value) || value.is_null()) return 0;
  uint64_t limit = 0;
  if (!value.get(limit) || limit > std::numeric_limits<uint32_t>::max()) {
    return make_error(ErrorCode::kData, "max_concurrency: wanted a whole number from 0 to {}, or none",
                      std::numeric_limits<uint32_t>::max());
  }
  return static_cast<uint32_t>(limit);
}

/// Returns whether requests came at a rate in numbers, not at another's end ("inf").
bool has_rate(JsonObject fields) {
  double rate = 0;
  return fields["request_rate"].get(rate) && std::isfinite(rate);
}

/// Returns when the requests come. With a rate that is when they were due, not when the concurrency limit let them
/// start.
Result<std::vector<double>> read_times(JsonObject fields, bool rated) {
  JsonValue due;
  const bool has_due = rated && fields["due_times"].get(due);
  return read_array<double>(fields, has_due ? "due_times" : "start_times", "a number that is not negative");
}

Result<Workload> read_workload(JsonObject fields) {
  const auto inputs = read_lengths(fields, "input_lens");
  if (inputs.has_error()) return inputs.error();
  const auto outputs = read_lengths(fields, "output_lens");
  if (outputs.has_error()) return outputs.error();
  const bool rated = has_rate(fields);
  const auto starts = read_times(fields, rated);
  if (starts.has_error()) return starts.error();
  if (std::ranges::any_of(*starts, [](double at_s) { return at_s > kLatestStart; })) {
    return make_error(ErrorCode::kData, "start_times: wanted seconds, at most {}", kLatestStart);
  }
  const auto limit = read_limit(fields);
  if (limit.has_error()) return limit.error();
  if (inputs->empty() || inputs->size() != outputs->size() || inputs->size() != starts->size()) {
    return make_error(ErrorCode::kData,
                      "input_lens, output_lens, start_times or due_times: {}, {} and {} entries, wanted as many of "
                      "each, at least 1",
                      inputs->size(), outputs->size(), starts->size());
  }
  Workload workload{.max_concurrency = *limit};
  const bool closed = *limit > 0 && !rated;  // requests that waited come at another's end
  const double first_s = closed ? std::ranges::min(*starts) : 0;
  double last_s = 0;
  const size_t on_time = closed ? std::min<size_t>(*limit, inputs->size()) : inputs->size();
  for (size_t i = 0; i < inputs->size(); ++i) {
    if ((*inputs)[i] < 1 || (*outputs)[i] < 1) {
      return make_error(ErrorCode::kData, "request {}: {} tokens in and {} out, wanted one of each: did it fail?", i,
                        (*inputs)[i], (*outputs)[i]);
    }
    const double at_s = i < on_time ? (*starts)[i] - first_s : last_s;
    last_s = std::max(last_s, at_s);
    workload.arrivals.push_back({at_s, static_cast<uint32_t>((*inputs)[i]), static_cast<uint32_t>((*outputs)[i])});
  }
  std::ranges::sort(std::span(workload.arrivals).first(on_time), {}, &RequestArrival::at_s);
  return workload;
}

}  // namespace

Result<Workload> load_workload(const std::filesystem::path& result_file) {
  const auto text = read_text_file(result_file);
  if (text.has_error()) return text.error();
  const auto document = JsonDocument::parse(*text, {.accepts_non_finite = true});
  if (document.has_error()) {
    return make_error(ErrorCode::kData, "{}: {}", result_file.string(), document.error().message);
  }
  JsonObject fields;
  if (!document->root().get(fields)) {
    return make_error(ErrorCode::kData, "{}: wanted a JSON object", result_file.string());
  }
  auto workload = read_workload(fields);
  if (workload.has_error()) {
    return make_error(workload.error().code, "{}: {}", result_file.string(), workload.error().message);
  }
  return workload;
}

Workload make_workload(const WorkloadOptions& options) {
  Workload workload{std::vector<RequestArrival>(options.requests), options.max_concurrency, 0};
  uint64_t draws = 0;
  const auto dice = [&] { return uniform_at(options.seed, draws++); };
  const auto vary = [&](uint32_t length) {
    const double factor = 1 + options.spread * (2 * dice() - 1);
    return std::max(1u, static_cast<uint32_t>(std::lround(length * factor)));
  };
  double now = 0;
  for (RequestArrival& arrival : workload.arrivals) {
    if (options.rate_per_s > 0) now += -std::log(1 - dice()) / options.rate_per_s;
    arrival.at_s = now;
    arrival.is_long = dice() < options.long_share;
    arrival.input_length = vary(arrival.is_long ? options.long_input_length : options.input_length);
    arrival.output_length = vary(options.output_length);
    if (options.prefix_length == 0) continue;
    arrival.prefix_group = static_cast<uint32_t>(dice() * options.prefix_count);
    arrival.prefix_length = options.prefix_length;
    arrival.input_length += options.prefix_length;
  }
  return workload;
}

}  // namespace millrace::sim
