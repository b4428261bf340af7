#include <fmt/core.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <chrono>
#include <filesystem>
#include <vector>

#include "async/real_runtime.h"
#include "async/task_group.h"
#include "base/check.h"
#include "base/log.h"
#include "base/random.h"
#include "cache/store/page_store.h"
#include "plain_io.h"

/// How long a request waits for what a file store answers, while nothing else goes on there and while it is being
/// written to all the time. The two take turns within a round, so that a noisy machine treats both alike.
namespace {

using namespace millrace;
using namespace millrace::bench;
namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr uint64_t kSeed = 20;
constexpr uint64_t kFirstPut = uint64_t{1} << 32;  // keys below are those of pages that are read
constexpr uint64_t kPagesRead = 4;                 // in turns, so that none of them is evicted
constexpr size_t kRoom = 64;                       // times the puts under way, for what is stored

struct BenchOptions {
  std::string path = ".";
  size_t page_kib = 128;
  size_t puts = 64;
  size_t reads = 40;
  size_t rounds = 5;
  int threads = 4;
};

cache::PageKey key_of(uint64_t number) {
  cache::PageKey key;
  for (uint32_t i = 0; i < key.bytes.size(); ++i) {
    key.bytes[i] = static_cast<uint8_t>(uniform_at(kSeed + number, i) * 256);
  }
  return key;
}

struct Figures {
  std::vector<double> probes_ms;
  std::vector<double> gets_ms;
};

class Bench {
 public:
  Bench(const BenchOptions& options, const std::string& folder, bool use_io_uring)
      : options_(options), page_bytes_(options.page_kib << 10) {
    cache::FileStoreOptions store;
    store.path = folder;
    store.max_bytes = (page_bytes_ + 4096) * kRoom * options.puts;
    store.threads = options.threads;
    store.use_io_uring = use_io_uring;
    store_ = cache::open_file_store(runtime_, {"bench", 0, 1, "bf16", 64, page_bytes_}, store).value();
    for (size_t i = 0; i < source_.all().size(); ++i) source_.all()[i] = static_cast<std::byte>(i % 251);
    run(fill());
  }

  void round() {
    run(read_pages(alone_));
    run(read_beside_puts());
  }
  void print(const char* engine) const {
    const auto line = [&](const char* what, const std::vector<double>& alone, const std::vector<double>& beside) {
      fmt::print("{:>9} {:>7}: alone {}, beside {} puts {}\n", engine, what, spread(alone), options_.puts,
                 spread(beside));
    };
    line("probe", alone_.probes_ms, beside_.probes_ms);
    line("get", alone_.gets_ms, beside_.gets_ms);
  }
  [[nodiscard]] uint64_t put_count() const { return next_put_; }

 private:
  static std::string spread(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    const auto at = [&](double fraction) {
      return values[static_cast<size_t>(fraction * static_cast<double>(values.size() - 1) + 0.5)];
    };
    return fmt::format("{:.2f} ms (p99 {:.2f}, most {:.2f})", at(0.5), at(0.99), values.back());
  }
  void run(asio::awaitable<void> task) {
    asio::co_spawn(context_, std::move(task), [](const std::exception_ptr& failure) { CHECK(!failure); });
    context_.restart();
    context_.run();
  }
  asio::awaitable<void> put_one(uint64_t number) {
    (void)co_await store_->put(key_of(number), source_.all().first(page_bytes_));
  }
  asio::awaitable<void> fill() {
    for (uint64_t i = 0; i < kPagesRead; ++i) co_await put_one(i);
  }
  asio::awaitable<void> keep_putting() {
    while (!done_) co_await put_one(kFirstPut + next_put_++);
  }
  asio::awaitable<void> read_pages(Figures& figures) {
    for (uint64_t i = 0; i < options_.reads; ++i) {
      auto begin = Clock::now();
      const auto taken_ms = [&] {
        const auto end = Clock::now();
        return std::chrono::duration<double, std::milli>(end - std::exchange(begin, end)).count();
      };
      (void)co_await store_->exists(key_of(kFirstPut - 1 - i));
      figures.probes_ms.push_back(taken_ms());
      const bool hit = co_await store_->get(key_of(i % kPagesRead), target_.all().first(page_bytes_));
      figures.gets_ms.push_back(taken_ms());
      CHECK(hit, "page {} is not there", i % kPagesRead);
      co_await async::sleep_for(runtime_, std::chrono::milliseconds(5));
    }
  }
  asio::awaitable<void> read_beside_puts() {
    done_ = false;
    async::TaskGroup group(runtime_);
    for (size_t i = 0; i < options_.puts; ++i) group.spawn("puts", keep_putting());
    co_await async::sleep_for(runtime_, std::chrono::milliseconds(100));
    co_await read_pages(beside_);
    done_ = true;
    co_await group.join();
  }

  const BenchOptions options_;
  const size_t page_bytes_;
  const Buffer source_{page_bytes_};
  const Buffer target_{page_bytes_};
  asio::io_context context_{1};
  async::RealRuntime runtime_{context_};
  std::unique_ptr<cache::PageStore> store_;
  Figures alone_;
  Figures beside_;
  bool done_ = false;
  uint64_t next_put_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  BenchOptions options;
  CLI::App app(
      "store_wait: time until a file store answers a probe for a page that it has not, and a get of one that it has, "
      "alone and beside puts.");
  app.add_option("--path", options.path, "folder on the disk to measure")->capture_default_str();
  app.add_option("--page-kib", options.page_kib, "bytes of a page")->capture_default_str()->check(CLI::PositiveNumber);
  app.add_option("--puts", options.puts, "puts under way at any time")
      ->capture_default_str()
      ->check(CLI::Range(1, 256));
  app.add_option("--reads", options.reads, "probes and gets of a round")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--rounds", options.rounds, "rounds")->capture_default_str()->check(CLI::PositiveNumber);
  app.add_option("--threads", options.threads, "workers of the store")
      ->capture_default_str()
      ->check(CLI::Range(1, 256));
  CLI11_PARSE(app, argc, argv);
  log::configure(log::Level::kWarn, false);
  const fs::path folder = fs::path(options.path) / fmt::format("store-wait-{}", getpid());
  {
    Bench ring(options, (folder / "ring").string(), true);
    Bench blocking(options, (folder / "blocking").string(), false);
    for (size_t i = 0; i < options.rounds; ++i) {
      ring.round();
      blocking.round();
    }
    fmt::print("pages of {} KiB, {} workers; medians of {} rounds of {}\n", options.page_kib, options.threads,
               options.rounds, options.reads);
    ring.print("io_uring");
    blocking.print("blocking");
    fmt::print("{} and {} pages were written meanwhile\n", ring.put_count(), blocking.put_count());
  }
  fs::remove_all(folder);
  return 0;
}
