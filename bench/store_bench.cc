#include <fmt/core.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <functional>
#include <future>
#include <vector>

#include "async/real_runtime.h"
#include "async/task_group.h"
#include "base/check.h"
#include "base/log.h"
#include "base/random.h"
#include "cache/store/page_store.h"
#include "cpu/cpu_backend.h"
#include "plain_io.h"

/// How fast pages come from a file store and from host memory to the device, and go back, compared with plain calls for
/// the same bytes on the same disk and with memcpy. Everything takes turns within a round, so that a noisy machine
/// treats all alike.
namespace {

using namespace millrace;
using namespace millrace::bench;
using tensor::CopyDirection;
namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

/// 64 tokens of 8 heads of 64 channels, keys and values in bf16.
constexpr size_t kLayerBytes = size_t{128} << 10;

struct BenchOptions {
  std::string path = ".";
  size_t layer_count = 16;
  size_t page_bytes = layer_count * kLayerBytes;
  size_t page_count = 64;
  size_t rounds = 7;
  int threads = 4;
};

/// Gigabytes per second of one contender, per round.
struct Series {
  std::string name;
  std::vector<double> values;
};

double at(std::vector<double> values, double fraction) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(fraction * static_cast<double>(values.size() - 1) + 0.5)];
}

cache::PageKey key_of(size_t number) {
  cache::PageKey key;
  for (uint32_t i = 0; i < key.bytes.size(); ++i) {
    key.bytes[i] = static_cast<uint8_t>(uniform_at(number, i) * 256);
  }
  return key;
}

class Bench {
 public:
  explicit Bench(const BenchOptions& options)
      : options_(options),
        folder_(fs::path(options.path) / fmt::format("store-bench-{}", getpid())),
        bytes_(options.page_bytes * options.page_count),
        cache_(device_->make_kv_cache({.layer_count = static_cast<int32_t>(options.layer_count),
                                       .kv_head_count = 8,
                                       .head_dim = 64,
                                       .page_size = 64,
                                       .page_count = static_cast<int32_t>(options.page_count)})) {
    CHECK(cache_->page_bytes() == options.page_bytes, "{} bytes", cache_->page_bytes());
    for (size_t i = 0; i + 8 <= bytes_; i += 8) {
      const uint64_t word = (i + 1) * 0x9E3779B97F4A7C15u;
      std::memcpy(&source_.all()[i], &word, sizeof word);
    }
  }
  ~Bench() { fs::remove_all(folder_); }

  void round();
  void forget_figures() {
    for (Series& each : series_) each.values.clear();
  }
  void report() const;

 private:
  static constexpr size_t kEngines = 2;
  enum Figure : size_t {
    kMemcpy,
    kPlainWarm,
    kWarm,
    kPlainCold = kWarm + kEngines,
    kCold,
    kPlainPut = kCold + kEngines,
    kPut,
    kLoad = kPut + kEngines,
    kStore,
    kRestore
  };
  void measure(size_t figure, const std::function<void()>& body) {
    const auto begin = Clock::now();
    body();
    const std::chrono::duration<double> taken = Clock::now() - begin;
    series_[figure].values.push_back(static_cast<double>(bytes_) / taken.count() / 1e9);
  }
  void run(asio::awaitable<void> task) {
    asio::co_spawn(context_, std::move(task), [](const std::exception_ptr& failure) { CHECK(!failure); });
    context_.restart();
    context_.run();
  }
  asio::awaitable<void> get_one(cache::PageStore& store, size_t page) {
    const bool hit = co_await store.get(key_of(page), target_.part(page, options_.page_bytes));
    CHECK(hit, "page {} is not there", page);
  }
  asio::awaitable<void> put_one(cache::PageStore& store, size_t page) {
    const bool stored = co_await store.put(key_of(page), source_.part(page, options_.page_bytes));
    CHECK(stored, "page {} was refused", page);
  }
  asio::awaitable<void> get_all(cache::PageStore& store) {
    async::TaskGroup group(runtime_);
    for (size_t page = 0; page < options_.page_count; ++page) group.spawn("get", get_one(store, page));
    co_await group.join();
  }
  asio::awaitable<void> put_all(cache::PageStore& store) {
    async::TaskGroup group(runtime_);
    for (size_t page = 0; page < options_.page_count; ++page) group.spawn("put", put_one(store, page));
    co_await group.join();
  }
  void forget_folder(const fs::path& path) {
    for (const auto& entry : fs::recursive_directory_iterator(path)) {
      if (entry.is_regular_file()) forget_file(entry.path());
    }
  }
  void copy_pages(CopyDirection direction, const std::function<void(std::span<const tensor::PageTransfer>)>& copy);
  void load_all();
  void round_of_device();
  void round_of_store(size_t engine);
  void round_of_plain_calls();

  const BenchOptions options_;
  const fs::path folder_;
  const size_t bytes_;
  const Buffer source_{bytes_};  // [page_count, page_bytes]
  const Buffer target_{bytes_};  // [page_count, page_bytes]
  const std::unique_ptr<tensor::Backend> device_ = cpu::make_backend({.threads = 1});
  const std::unique_ptr<tensor::KvCache> cache_;  // page_count pages
  asio::io_context context_{1};
  async::RealRuntime runtime_{context_};
  std::vector<Series> series_ = {{"memcpy", {}},
                                 {"plain read, cached", {}},
                                 {"get, cached, io_uring", {}},
                                 {"get, cached, blocking", {}},
                                 {"plain read, from disk", {}},
                                 {"get, from disk, io_uring", {}},
                                 {"get, from disk, blocking", {}},
                                 {"plain write and sync", {}},
                                 {"put, io_uring", {}},
                                 {"put, blocking", {}},
                                 {"host to device, by layer", {}},
                                 {"device to host, by page", {}},
                                 {"disk to host to device", {}}};
};

void Bench::round_of_plain_calls() {
  measure(kMemcpy, [&] { std::memcpy(target_.all().data(), source_.all().data(), bytes_); });
  const fs::path folder = folder_ / "plain";
  fs::create_directories(folder);
  measure(kPlainPut, [&] {
    for (size_t page = 0; page < options_.page_count; ++page) {
      write_file(folder / std::to_string(page), source_.part(page, options_.page_bytes));
    }
  });
  fs::remove_all(folder);
  fs::create_directories(folder);
  const fs::path whole = folder / "whole";
  write_file(whole, source_.all());
  measure(kPlainWarm, [&] { read_file(whole, target_.all()); });
  forget_file(whole);
  measure(kPlainCold, [&] { read_file(whole, target_.all()); });
  fs::remove_all(folder);
}

void Bench::copy_pages(CopyDirection direction,
                       const std::function<void(std::span<const tensor::PageTransfer>)>& copy) {
  std::vector<tensor::PageTransfer> places;
  for (size_t page = 0; page < options_.page_count; ++page) {
    places.push_back({PageId(static_cast<uint32_t>(page)), target_.part(page, options_.page_bytes).data()});
  }
  std::promise<void> done;
  device_->submit_copy(
      direction, [&] { copy(places); },
      [&done](const std::exception_ptr& failure) {
        CHECK(!failure);
        done.set_value();
      });
  done.get_future().wait();
}

void Bench::load_all() {
  for (size_t layer = 0; layer < options_.layer_count; ++layer) {
    copy_pages(CopyDirection::kToDevice,
               [&](auto places) { cache_->write_layer(static_cast<int32_t>(layer), places); });
  }
}

void Bench::round_of_device() {
  measure(kLoad, [&] { load_all(); });
  std::memset(target_.all().data(), 0, bytes_);
  measure(kStore, [&] { copy_pages(CopyDirection::kToHost, [&](auto places) { cache_->read_pages(places); }); });
  CHECK(std::memcmp(target_.all().data(), source_.all().data(), bytes_) == 0);
}

void Bench::round_of_store(size_t engine) {
  cache::FileStoreOptions options;
  options.path = (folder_ / "store").string();
  options.max_bytes = 2 * bytes_ + (size_t{1} << 20);
  options.threads = options_.threads;
  options.max_queued_puts = options_.page_count;
  options.use_io_uring = engine == 0;
  const cache::StoreIdentity identity{"bench", 0, 1, "bf16", 64, options_.page_bytes};
  auto store = cache::open_file_store(runtime_, identity, options).value();
  measure(kPut + engine, [&] { run(put_all(*store)); });
  measure(kWarm + engine, [&] { run(get_all(*store)); });
  CHECK(std::memcmp(target_.all().data(), source_.all().data(), bytes_) == 0);
  forget_folder(options.path);
  measure(kCold + engine, [&] { run(get_all(*store)); });
  CHECK(std::memcmp(target_.all().data(), source_.all().data(), bytes_) == 0);
  if (engine == 0) {
    round_of_device();
    forget_folder(options.path);
    measure(kRestore, [&] {
      run(get_all(*store));
      load_all();
    });
  }
  store.reset();
  fs::remove_all(options.path);
}

void Bench::round() {
  round_of_plain_calls();
  for (size_t engine = 0; engine < kEngines; ++engine) round_of_store(engine);
}

void Bench::report() const {
  const auto line = [&](size_t figure, size_t plain) {
    const Series& series = series_[figure];
    fmt::print("{:>26} {:8.2f} ({:.2f} to {:.2f})", series.name, at(series.values, 0.5), at(series.values, 0.0),
               at(series.values, 1.0));
    if (figure != plain) {
      std::vector<double> ratios;
      for (size_t i = 0; i < series.values.size(); ++i) ratios.push_back(series.values[i] / series_[plain].values[i]);
      fmt::print("   {:.2f} of {} ({:.2f} to {:.2f})", at(ratios, 0.5), series_[plain].name, at(ratios, 0.0),
                 at(ratios, 1.0));
    }
    fmt::print("\n");
  };
  fmt::print("{} pages of {} KiB, {} workers; GB/s, medians (least to most) of {} rounds; ratios within a round\n",
             options_.page_count, options_.page_bytes / 1024, options_.threads, options_.rounds);
  line(kMemcpy, kMemcpy);
  line(kPlainWarm, kMemcpy);
  for (size_t engine = 0; engine < kEngines; ++engine) line(kWarm + engine, kMemcpy);
  for (size_t engine = 0; engine < kEngines; ++engine) line(kWarm + engine, kPlainWarm);
  line(kPlainCold, kPlainCold);
  for (size_t engine = 0; engine < kEngines; ++engine) line(kCold + engine, kPlainCold);
  line(kPlainPut, kPlainPut);
  for (size_t engine = 0; engine < kEngines; ++engine) line(kPut + engine, kPlainPut);
  line(kLoad, kMemcpy);
  line(kStore, kMemcpy);
  line(kRestore, kPlainCold);
}

}  // namespace

int main(int argc, char** argv) {
  BenchOptions options;
  CLI::App app(
      "store_bench: bandwidth of pages between store, host and device, beside plain sequential reads, write and sync "
      "per page, and memcpy. Needs twice the pages' bytes in --path, three times in memory.");
  app.add_option("--path", options.path, "folder on the disk to measure")->capture_default_str();
  app.add_option("--layers", options.layer_count, "layers of a stage: 128 KiB of a page each")
      ->capture_default_str()
      ->check(CLI::Range(1, 1024));
  app.add_option("--pages", options.page_count, "pages per round")->capture_default_str()->check(CLI::PositiveNumber);
  app.add_option("--rounds", options.rounds, "rounds, after one that does not count")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--threads", options.threads, "workers of the store")
      ->capture_default_str()
      ->check(CLI::Range(1, 256));
  CLI11_PARSE(app, argc, argv);
  options.page_bytes = options.layer_count * kLayerBytes;
  log::configure(log::Level::kWarn, false);
  Bench bench(options);
  for (size_t round = 0; round <= options.rounds; ++round) {
    bench.round();
    if (round == 0) bench.forget_figures();
  }
  bench.report();
  return 0;
}
