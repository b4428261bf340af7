// The prefix cache's own time in the head: insertion of a prompt (evicting others where it must) and its match, over
// the length of the prompt and over the number of pages that the tree holds already.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>

#include "base/random.h"
#include "cache/prefix_cache.h"

using namespace millrace;

namespace {

using Clock = std::chrono::steady_clock;

struct Times {
  std::vector<double> insert_us;
  std::vector<double> match_us;
};

std::vector<TokenId> prompt(uint64_t seed, size_t length) {
  std::vector<TokenId> tokens(length);
  for (size_t i = 0; i < length; ++i) tokens[i] = static_cast<TokenId>(uniform_at(seed, i) * 150'000);
  return tokens;
}

std::string spread(std::vector<double> values) {
  std::ranges::sort(values);
  return fmt::format("{:>10.1f} [{:.1f}, {:.1f}]", values[values.size() / 2], values.front(), values.back());
}

/// Takes `tokens` through the cache as the scheduler does.
void compute(cache::PrefixCache& cache, std::span<const TokenId> tokens, uint32_t page_size) {
  cache::PageTable page_table;
  const auto match = cache.match("", tokens);
  CHECK(cache.acquire(page_table, "", match, (tokens.size() + page_size - 1) / page_size), "the cache is too small");
  cache.publish(page_table, tokens);
  cache.release(page_table);
}

Times measure(uint32_t page_size, size_t length, size_t other_pages, int rounds, bool has_store) {
  const size_t own_pages = length / page_size + 1;
  cache::PrefixCacheOptions options{page_size, static_cast<uint32_t>(other_pages + 2 * own_pages)};
  if (has_store) {
    options.host_page_count = 1;
    options.has_store = true;
    options.write_policy = cache::WritePolicy::kWriteThroughSelective;
  }
  cache::PrefixCache cache(options);
  constexpr size_t kOtherLength = 64;  // pages of each of the others
  for (size_t pages = 0; pages < other_pages; pages += kOtherLength) {
    compute(cache, prompt(1000 + pages, kOtherLength * page_size), page_size);
  }
  Times times;
  for (int round = 0; round < rounds; ++round) {
    const auto tokens = prompt(static_cast<uint64_t>(round), length);
    const auto start = Clock::now();
    compute(cache, tokens, page_size);
    const auto inserted = Clock::now();
    const auto match = cache.match("", tokens);
    const auto matched = Clock::now();
    CHECK(match.pages == length / page_size, "{} pages found, {} inserted", match.pages, length / page_size);
    const auto us = [](auto from, auto to) { return std::chrono::duration<double, std::micro>(to - from).count(); };
    times.insert_us.push_back(us(start, inserted));
    times.match_us.push_back(us(inserted, matched));
  }
  return times;
}

}  // namespace

int main(int argc, char** argv) {
  uint32_t page_size = 64;
  int rounds = 9;
  CLI::App app("prefix_bench: what the prefix cache costs the head.");
  app.add_option("--page-size", page_size, "tokens per page")->check(CLI::Range(1, 4096))->capture_default_str();
  app.add_option("--rounds", rounds, "prompts per line")->check(CLI::Range(1, 1000))->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  fmt::print("{:>10} {:>12} {:>6}   {:<32} {:<32}\n", "tokens", "other pages", "keys", "insert, us", "match, us");
  for (const size_t length : {size_t{1} << 13, size_t{1} << 17, size_t{1} << 20}) {
    for (const size_t other_pages : {0, 10'000, 100'000}) {
      for (const bool has_store : {false, true}) {
        const Times times = measure(page_size, length, other_pages, rounds, has_store);
        fmt::print("{:>10} {:>12} {:>6}   {:<32} {:<32}\n", length, other_pages, has_store ? "yes" : "no",
                   spread(times.insert_us), spread(times.match_us));
      }
    }
  }
  return 0;
}
