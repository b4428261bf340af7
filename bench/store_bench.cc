#include <fcntl.h>
#include <fmt/core.h>
#include <sys/mman.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <functional>
#include <vector>

#include "async/real_runtime.h"
#include "async/task_group.h"
#include "base/check.h"
#include "base/log.h"
#include "base/random.h"
#include "cache/page_store.h"

/// How fast a file store gives and takes pages, beside plain calls for the same bytes on the same disk and beside
/// memcpy. Everything takes turns within a round, so that a noisy machine treats all alike.
namespace {

using namespace millrace;
namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

struct BenchOptions {
  std::string path = ".";
  size_t page_bytes = size_t{2} << 20;
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

/// Gives the file's pages of the page cache back; they must be on the disk already.
void forget_file(const fs::path& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  CHECK(file >= 0, "{}", path.string());
  CHECK(posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED) == 0);
  close(file);
}

void write_file(const fs::path& path, std::span<const std::byte> bytes) {
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  CHECK(file >= 0, "{}: {}", path.string(), std::strerror(errno));
  while (!bytes.empty()) {
    const ssize_t count = write(file, bytes.data(), bytes.size());
    CHECK(count > 0, "{}: {}", path.string(), std::strerror(errno));
    bytes = bytes.subspan(static_cast<size_t>(count));
  }
  CHECK(fdatasync(file) == 0);
  close(file);
}

void read_file(const fs::path& path, std::span<std::byte> into) {
  constexpr size_t kPiece = size_t{1} << 20;
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  CHECK(file >= 0, "{}", path.string());
  while (!into.empty()) {
    const ssize_t count = read(file, into.data(), std::min(kPiece, into.size()));
    CHECK(count > 0);
    into = into.subspan(static_cast<size_t>(count));
  }
  close(file);
}

/// Memory aligned as pools of pages are: the kernel copies several times slower to or from some other addresses.
class Buffer {
 public:
  explicit Buffer(size_t bytes) : bytes_(bytes) {
    void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(mapped != MAP_FAILED, "{} bytes", bytes);
    data_ = static_cast<std::byte*>(mapped);
    std::memset(data_, 1, bytes);
  }
  ~Buffer() { munmap(data_, bytes_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  [[nodiscard]] std::span<std::byte> all() const { return {data_, bytes_}; }
  [[nodiscard]] std::span<std::byte> part(size_t index, size_t bytes) const {
    return all().subspan(index * bytes, bytes);
  }

 private:
  size_t bytes_;
  std::byte* data_ = nullptr;
};

class Bench {
 public:
  explicit Bench(const BenchOptions& options)
      : options_(options),
        folder_(fs::path(options.path) / fmt::format("store-bench-{}", getpid())),
        bytes_(options.page_bytes * options.page_count) {
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
    kPut
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
  void round_of_store(size_t engine);
  void round_of_plain_calls();

  const BenchOptions options_;
  const fs::path folder_;
  const size_t bytes_;
  const Buffer source_{bytes_};  // [page_count, page_bytes]
  const Buffer target_{bytes_};  // [page_count, page_bytes]
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
                                 {"put, blocking", {}}};
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
}

}  // namespace

int main(int argc, char** argv) {
  BenchOptions options;
  CLI::App app(
      "store_bench: bandwidth of a file store's get and put, beside plain sequential reads, write and sync "
      "per page, and memcpy. Needs twice the pages' bytes in --path and in memory.");
  app.add_option("--path", options.path, "folder on the disk to measure")->capture_default_str();
  app.add_option("--page-bytes", options.page_bytes, "size of a page")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--pages", options.page_count, "pages per round")->capture_default_str()->check(CLI::PositiveNumber);
  app.add_option("--rounds", options.rounds, "rounds, after one that does not count")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--threads", options.threads, "workers of the store")
      ->capture_default_str()
      ->check(CLI::Range(1, 256));
  CLI11_PARSE(app, argc, argv);
  log::configure(log::Level::kWarn, false);
  Bench bench(options);
  for (size_t round = 0; round <= options.rounds; ++round) {
    bench.round();
    if (round == 0) bench.forget_figures();
  }
  bench.report();
  return 0;
}
