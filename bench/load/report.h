#pragma once

#include <map>
#include <string>
#include <vector>

#include "load/options.h"
#include "load/runner.h"

namespace millrace::load {

/// Mean, population standard deviation and percentiles (linear interpolation between ranks), in milliseconds. All 0
/// without samples.
struct Statistics {
  double mean = 0.0;
  double median = 0.0;
  double std = 0.0;
  std::vector<double> percentiles;  ///< [Options::percentiles]
};
[[nodiscard]] Statistics statistics_of(std::vector<double> samples_ms, const std::vector<double>& percentiles);

/// Failures of one kind.
struct FailureCount {
  uint64_t count = 0;
  std::vector<std::string> messages;  ///< the first different ones
};

/// The figures of one run; only completed requests count in the times and the tokens.
struct Summary {
  double duration_s = 0.0;
  uint64_t completed = 0;
  uint64_t failed = 0;
  uint64_t unsent = 0;  ///< not sent or not finished when the run was interrupted
  uint64_t total_input_tokens = 0;
  uint64_t total_output_tokens = 0;
  uint64_t counted_by_chunks = 0;  ///< completed requests without usage
  uint64_t good = 0;
  Statistics ttft;
  Statistics tpot;
  Statistics itl;
  Statistics e2el;
  Statistics late;  ///< how long after they were due requests were sent, failed ones too; of a run with a rate
  std::map<std::string, FailureCount> failures;
  [[nodiscard]] double per_second(uint64_t count) const;
};
[[nodiscard]] Summary summarize(const RunResult& result, const Options& options);

/// The report for a terminal.
[[nodiscard]] std::string to_text(const Summary& summary, const RunResult& result, const Options& options);
/// The content of the result file.
[[nodiscard]] std::string to_json(const Summary& summary, const RunResult& result, const Options& options);

}  // namespace millrace::load
