#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace millrace::load {

enum class Endpoint { kCompletions, kChat };
enum class Dataset { kRandom, kSharedPrefix, kMultiTurn };
[[nodiscard]] std::string_view to_string(Dataset dataset);

/// A request is good when each limit that is set holds for it.
struct Goodput {
  std::optional<double> ttft_ms;
  std::optional<double> tpot_ms;
  std::optional<double> e2el_ms;
  [[nodiscard]] bool any() const { return ttft_ms || tpot_ms || e2el_ms; }
};

/// Where the server listens: "http://host:port/prefix" taken apart.
struct Target {
  std::string host;
  std::string port;
  std::string prefix;  ///< what stands before /v1, without a slash at the end
};

struct Options {
  Target target;
  std::string base_url = "http://127.0.0.1:30000";
  std::string model;  ///< empty: the first of /v1/models
  std::string api_key;
  Endpoint endpoint = Endpoint::kCompletions;

  uint32_t num_prompts = 100;
  double request_rate = std::numeric_limits<double>::infinity();  ///< requests per second
  double burstiness = 1.0;       ///< the gamma shape of the gaps between arrivals; 1: Poisson
  uint32_t max_concurrency = 0;  ///< 0: no limit
  double ramp_up_s = 0.0;
  uint32_t warmups = 0;
  double timeout_s = 600.0;

  Dataset dataset = Dataset::kRandom;
  uint32_t input_len = 256;  ///< tokens, of the part that is unique to a prompt
  uint32_t output_len = 128;
  double range_ratio = 0.0;  ///< lengths are uniform in [len * (1 - r), len * (1 + r)]
  uint32_t prefix_len = 1024;
  uint32_t prefix_count = 8;
  uint64_t prefix_seed = 0;
  uint32_t turn_count = 4;  ///< of each conversation
  uint32_t vocab_size = 1000;
  bool text = false;
  bool ignore_eos = false;
  double temperature = 0.0;
  uint64_t seed = 0;

  std::vector<double> percentiles = {90.0, 99.0};
  Goodput goodput;
  std::string result_file;
  bool quiet = false;
};

/// What the command line asks for: options, or an exit code after the help or an error has been printed.
struct ParsedOptions {
  Options options;
  std::optional<int> exit_code;
};
[[nodiscard]] ParsedOptions parse_options(int argc, const char* const* argv);

[[nodiscard]] Result<Target> parse_base_url(std::string_view url);
/// "ttft:200", "tpot:50", "e2el:3000", in milliseconds.
[[nodiscard]] Result<Goodput> parse_goodput(const std::vector<std::string>& limits);

}  // namespace millrace::load
