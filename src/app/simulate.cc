#include "app/simulate.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <map>

#include "app/model_report.h"
#include "base/json.h"
#include "server/observe/trace_writer.h"
#include "sim/cluster.h"
#include "sim/experiment.h"
#include "sim/svg_plot.h"

namespace millrace::app {
namespace {

/// The chunk sizes of the published measurements. Efficiency refers to the one that is the fastest on one stage.
constexpr uint32_t kBaselineChunks[] = {6144, 12288, 18432};

/// Returns the flags with a value in every list.
SimulateFlags complete(SimulateFlags flags, const sim::Cluster& cluster) {
  const auto fill = [&flags](auto& list, auto usual, auto swept) {
    if (list.empty()) list = flags.sweep ? swept : usual;
  };
  using Sizes = std::vector<int32_t>;
  const Sizes measured{static_cast<int32_t>(cluster.measured_stages.size())};
  if (measured[0] > 0) fill(flags.pp_sizes, measured, measured);
  Sizes possible{1, 2, 4, 8};
  std::erase_if(possible, [&](int32_t size) { return cluster.divide(size).has_error(); });
  fill(flags.pp_sizes, Sizes{1}, possible);
  const Sizes described{cluster.ranks_of(0)};
  fill(flags.tp_sizes, described, described);
  using sched::Chunking;
  fill(flags.chunkings, std::vector{Chunking::kFixed},
       std::vector{Chunking::kFixed, Chunking::kPublished, Chunking::kBalanced});
  fill(flags.chunk_sizes, std::vector{8192U}, std::vector{2048U, 4096U, 8192U, 16384U});
  fill(flags.smoothings, std::vector{0.75}, std::vector{0.5, 0.75, 1.0});
  return flags;
}

/// Returns all pairs of pp size and tp size.
std::vector<std::pair<int32_t, int32_t>> sizes_of(const SimulateFlags& flags) {
  std::vector<std::pair<int32_t, int32_t>> sizes;
  for (const int32_t pp_size : flags.pp_sizes) {
    for (const int32_t tp_size : flags.tp_sizes) sizes.emplace_back(pp_size, tp_size);
  }
  return sizes;
}

std::vector<sim::ExperimentConfig> combinations(const SimulateFlags& flags) {
  std::vector<sim::ExperimentConfig> settings;
  for (const auto& [pp_size, tp_size] : sizes_of(flags)) {
    for (const sched::Chunking chunking : flags.chunkings) {
      for (const uint32_t chunk_size : flags.chunk_sizes) {
        for (const double smoothing : flags.smoothings) {
          // Fixed chunks follow nothing.
          if (flags.sweep && chunking == sched::Chunking::kFixed && smoothing != flags.smoothings.front()) continue;
          for (const int32_t depth : flags.async_batch_depths) {
            settings.push_back({.pp_size = pp_size,
                                .async_batch_depth = depth,
                                .chunking = chunking,
                                .chunk_size = chunk_size,
                                .smoothing = smoothing,
                                .policy = flags.policy,
                                .spread_decodes = !flags.plain_batch_queue,
                                .tp_size = tp_size});
          }
        }
      }
    }
  }
  return settings;
}

/// Returns the smallest makespan of the workload on one stage of the described ranks, with fixed chunks. 0 where whole
/// stages were measured, which cannot be merged into one.
Result<double> baseline_s(const sim::Cluster& cluster, const SimulateFlags& flags, const sim::Workload& workload) {
  double best = 0;
  if (!cluster.measured_stages.empty()) return best;
  for (const uint32_t size : kBaselineChunks) {
    sim::ExperimentConfig setting;
    setting.chunk_size = size;
    const auto result = sim::run_experiment(cluster, setting, workload, flags.workload.seed);
    if (result.has_error()) return result.error();
    if (best == 0 || result->makespan_s < best) best = result->makespan_s;
  }
  return best;
}

void print_header(const SimulateFlags& flags) {
  fmt::print("{:>3} {:>4} {:>5} {:>10} {:>6} {:>6} {:>9} {:>9} {:>9} {:>6} {:>10} {:>8} {:>8} {:>8} {:>8} {:>7}", "pp",
             "tp", "depth", "chunking", "chunk", "smooth", "time s", "in tok/s", "out tok/s", "plans", "efficiency",
             "bubble", "TTFT p50", "TTFT p99", "TPOT p50", "retract");
  if (flags.workload.prefix_length > 0) fmt::print(" {:>7}", "cached");
  if (flags.workload.long_share > 0) fmt::print(" {:>10} {:>10}", "short p99", "long p99");
  if (flags.goal.ttft_s > 0 || flags.goal.tpot_s > 0) fmt::print(" {:>9}", "goodput/s");
  fmt::print("\n");
}

void print_row(const SimulateFlags& flags, const sim::ExperimentConfig& setting, const sim::ExperimentResult& result,
               double efficiency) {
  fmt::print(
      "{:>3} {:>4} {:>5} {:>10} {:>6} {:>6} {:>9.2f} {:>9.0f} {:>9.1f} {:>6} {:>10} {:>7.1f}% {:>8.2f} {:>8.2f} "
      "{:>8.4f} {:>7}",
      setting.pp_size, setting.tp_size, setting.async_batch_depth, enum_name(setting.chunking), setting.chunk_size,
      setting.smoothing, result.makespan_s, result.input_tokens_per_s, result.output_tokens_per_s, result.plans,
      efficiency > 0 ? fmt::format("{:.1f}%", 100 * efficiency) : "-", 100 * result.bubble_ratio, result.ttft_s(0.5),
      result.ttft_s(0.99), result.tpot_s(0.5), result.preemptions);
  if (flags.workload.prefix_length > 0) fmt::print(" {:>6.1f}%", 100 * result.cached_share);
  if (flags.workload.long_share > 0) {
    fmt::print(" {:>10.2f} {:>10.2f}", result.ttft_s(0.99, false), result.ttft_s(0.99, true));
  }
  if (flags.goal.ttft_s > 0 || flags.goal.tpot_s > 0) fmt::print(" {:>9.3f}", result.goodput(flags.goal));
  fmt::print("\n");
  std::fflush(stdout);
}

void write_row(JsonWriter& json, const SimulateFlags& flags, const sim::ExperimentConfig& setting,
               const sim::ExperimentResult& result, double efficiency) {
  json.begin_object().member("pp_size", setting.pp_size).member("tp_size", setting.tp_size);
  json.member("async_batch_depth", setting.async_batch_depth);
  json.member("chunking", enum_name(setting.chunking)).member("chunk_size", setting.chunk_size);
  json.member("smoothing", setting.smoothing).member("duration", result.makespan_s);
  json.member("input_throughput", result.input_tokens_per_s).member("output_throughput", result.output_tokens_per_s);
  json.member("plans", result.plans).member("bubble_ratio", result.bubble_ratio);
  json.member("cached_share", result.cached_share);
  if (efficiency > 0) json.member("efficiency", efficiency);
  json.member("mean_ttft_ms", 1e3 * result.mean_ttft_s()).member("mean_tpot_ms", 1e3 * result.mean_tpot_s());
  for (const double quantile : {0.5, 0.9, 0.99}) {
    json.member(fmt::format("p{:g}_ttft_ms", 100 * quantile), 1e3 * result.ttft_s(quantile));
    json.member(fmt::format("p{:g}_tpot_ms", 100 * quantile), 1e3 * result.tpot_s(quantile));
  }
  json.member("goodput", result.goodput(flags.goal)).member("preemptions", result.preemptions).end_object();
}

/// Prints the fastest setting of each pair of pp size and tp size that has several.
void print_fastest(const std::vector<std::pair<sim::ExperimentConfig, double>>& makespans, bool several_tp) {
  using Sizes = std::pair<int32_t, int32_t>;
  std::map<Sizes, std::pair<const sim::ExperimentConfig*, double>> fastest;
  std::map<Sizes, size_t> count;
  for (const auto& [setting, makespan_s] : makespans) {
    const Sizes sizes{setting.pp_size, setting.tp_size};
    auto& best = fastest.try_emplace(sizes, &setting, makespan_s).first->second;
    if (makespan_s < best.second) best = {&setting, makespan_s};
    ++count[sizes];
  }
  for (const auto& [sizes, best] : fastest) {
    if (count[sizes] < 2) continue;
    const std::string tp = several_tp ? fmt::format(" tp {}", sizes.second) : "";
    fmt::print("fastest at pp {}{}: {:.2f} s with --chunking {} --chunked-prefill-size {}", sizes.first, tp,
               best.second, enum_name(best.first->chunking), best.first->chunk_size);
    if (best.first->chunking != sched::Chunking::kFixed) {
      fmt::print(" --dynamic-chunking-smoothing {}", best.first->smoothing);
    }
    fmt::print(" --pp-async-batch-depth {}\n", best.first->async_batch_depth);
  }
}

/// Returns the name of a setting's line in the plot: all that varies but the horizontal axis. A whole sweep has too
/// much of that, so there each way of chunking has one line with its best settings.
std::string series_name(const SimulateFlags& flags, const sim::ExperimentConfig& setting) {
  std::string name(enum_name(setting.chunking));
  if (flags.sweep) return name + " at its best";
  if (flags.plot_x != PlotAxis::kPp && flags.pp_sizes.size() > 1) name += fmt::format(", pp {}", setting.pp_size);
  if (flags.tp_sizes.size() > 1) name += fmt::format(", tp {}", setting.tp_size);
  if (flags.plot_x != PlotAxis::kChunk && flags.chunk_sizes.size() > 1) name += fmt::format(", {}", setting.chunk_size);
  if (flags.plot_x != PlotAxis::kSmoothing && flags.smoothings.size() > 1)
    name += fmt::format(", σ {}", setting.smoothing);
  if (flags.async_batch_depths.size() > 1) name += fmt::format(", depth {}", setting.async_batch_depth);
  return name;
}

double plot_position(const SimulateFlags& flags, const sim::ExperimentConfig& setting) {
  switch (flags.plot_x) {
    case PlotAxis::kPp: return setting.pp_size;
    case PlotAxis::kChunk: return setting.chunk_size;
    case PlotAxis::kSmoothing: break;
  }
  return setting.smoothing;
}

/// Returns the trace that /stop_profile would have written.
std::string trace_of(const sim::ExperimentConfig& setting, const sim::PlanRecords& records) {
  std::string out;
  server::TraceWriter writer(setting.pp_size, setting.pp_size + setting.async_batch_depth);
  writer.begin(out);
  for (const sched::PlanRecord& record : records.complete) writer.add(out, record);
  writer.end(out, records.lost);
  return out;
}

Result<void> write_file(const std::filesystem::path& path, const std::string& content) {
  std::ofstream file(path, std::ios::binary);
  file << content;
  file.close();
  if (!file) return make_error(ErrorCode::kInvalidArgument, "{}: cannot be written", path.string());
  return {};
}

/// Checks what would stop the sweep half way, or leave it without its files at the end.
Result<void> check_feasible(const sim::Cluster& cluster, const SimulateFlags& flags, const sim::Workload& workload) {
  for (const auto& [pp_size, tp_size] : sizes_of(flags)) {
    const auto stages = cluster.divide(pp_size, tp_size);
    if (stages.has_error()) return stages.error();
  }
  for (const sim::RequestArrival& arrival : workload.arrivals) {
    if (uint64_t{arrival.input_length} + arrival.output_length > cluster.context_length) {
      return make_error(ErrorCode::kInvalidArgument, "a request of {} + {} tokens does not fit the context of {}",
                        arrival.input_length, arrival.output_length, cluster.context_length);
    }
  }
  if (!flags.plot.empty() && !cluster.measured_stages.empty()) {
    return Error{ErrorCode::kInvalidArgument,
                 "--plot draws the efficiency against one stage, which measured stages do not give"};
  }
  for (const auto* path : {&flags.result_file, &flags.plot, &flags.trace}) {
    if (!path->empty() && !std::ofstream(*path, std::ios::app)) {
      return make_error(ErrorCode::kInvalidArgument, "{}: cannot be written", path->string());
    }
  }
  return {};
}

}  // namespace

Result<void> simulate(const SimulateFlags& given) {
  if (!given.model_path.empty()) return report_model(given);
  const auto cluster = sim::Cluster::load(given.cluster);
  if (cluster.has_error()) return cluster.error();
  const SimulateFlags flags = complete(given, *cluster);
  auto workload = flags.requests.empty() ? sim::make_workload(flags.workload) : sim::load_workload(flags.requests);
  if (workload.has_error()) return workload.error();
  workload->client_latency_s = 1e-3 * flags.client_latency_ms;
  RETURN_IF_ERROR(check_feasible(*cluster, flags, *workload));
  const auto baseline = baseline_s(*cluster, flags, *workload);
  if (baseline.has_error()) return baseline.error();
  fmt::print("{}: {} requests", cluster->name, workload->arrivals.size());
  if (*baseline > 0) fmt::print("; one stage at its best takes {:.2f} s", *baseline);
  fmt::print("\n");
  print_header(flags);
  std::map<std::string, std::map<double, double>> lines;  // the most at each place
  std::string trace;
  std::string rows;
  JsonWriter json(rows);
  json.begin_array();
  uint64_t events = 0;
  size_t failed = 0;
  std::optional<Error> error;  // of the first of those
  const auto begin = std::chrono::steady_clock::now();
  std::vector<std::pair<sim::ExperimentConfig, double>> makespans;
  for (const sim::ExperimentConfig& setting : combinations(flags)) {
    sim::PlanRecords records;
    const auto result = sim::run_experiment(*cluster, setting, *workload, flags.workload.seed,
                                            flags.trace.empty() ? nullptr : &records);
    if (result.has_error()) return result.error();
    events += result->events;
    const double devices = setting.pp_size * static_cast<double>(setting.tp_size) / cluster->ranks_of(0);
    const double efficiency = result->makespan_s > 0 ? *baseline / result->makespan_s / devices : 0;
    print_row(flags, setting, *result, efficiency);
    write_row(json, flags, setting, *result, efficiency);
    if (result->failed_count() == 0) makespans.emplace_back(setting, result->makespan_s);
    if (failed == 0) error = result->first_error();
    failed += result->failed_count();
    double& most = lines[series_name(flags, setting)][plot_position(flags, setting)];
    most = std::max(most, 100 * efficiency);
    if (!flags.trace.empty()) trace = trace_of(setting, records);
  }
  json.end_array();
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
  print_fastest(makespans, flags.tp_sizes.size() > 1);
  fmt::print("{:.2f} million events in {:.1f} s\n", 1e-6 * static_cast<double>(events), taken.count());
  if (!flags.result_file.empty()) RETURN_IF_ERROR(write_file(flags.result_file, rows + "\n"));
  if (!flags.plot.empty()) {
    std::vector<sim::PlotSeries> series;
    for (const auto& [name, points] : lines) series.push_back({name, {points.begin(), points.end()}});
    RETURN_IF_ERROR(write_file(flags.plot, sim::plot_svg(cluster->name + ": strong-scaling efficiency",
                                                         std::string(enum_name(flags.plot_x)), "%", series)));
  }
  if (!flags.trace.empty()) RETURN_IF_ERROR(write_file(flags.trace, trace));
  if (failed == 0) return {};
  return make_error(ErrorCode::kInternal,
                    "{} requests ended with an error; all figures are of the others. The first: {}", failed,
                    error ? error->message : "it could not be sent");
}

}  // namespace millrace::app
