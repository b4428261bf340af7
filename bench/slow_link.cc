#include <fcntl.h>
#include <fmt/core.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <deque>
#include <string>
#include <vector>

/// A cable between two network namespaces with a rate and a delay each way, for kernels without netem: a tun device in
/// each, and this process between them. IP packets of any kind cross it; none is lost, because a sender's packets wait
/// in its own namespace while the cable is busy.
namespace {

using Clock = std::chrono::steady_clock;

/// The cable takes packets so long ahead of when they can leave: fewer wake-ups, and no change to when they arrive.
constexpr Clock::duration kAhead = std::chrono::microseconds(500);
constexpr size_t kMaxPacketBytes = 65535;

struct Options {
  std::array<std::string, 2> namespaces;
  std::string device = "ring";
  double rate_mbit = 1000;
  double delay_ms = 2;
};

[[noreturn]] void fail(const std::string& what) {
  fmt::print(stderr, "slow_link: {}: {}\n", what, std::strerror(errno));
  std::exit(1);
}

/// A tun device, which lives as long as its descriptor does.
int open_device(const std::string& name_space, const std::string& device) {
  const std::string place = "/var/run/netns/" + name_space;
  const int there = open(place.c_str(), O_RDONLY | O_CLOEXEC);
  if (there < 0 || setns(there, CLONE_NEWNET) != 0) fail(place);
  close(there);
  const int tun = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
  if (tun < 0) fail("/dev/net/tun");
  ifreq request{};
  request.ifr_flags = IFF_TUN | IFF_NO_PI;
  device.copy(request.ifr_name, IFNAMSIZ - 1);
  if (ioctl(tun, TUNSETIFF, &request) != 0) fail("device " + device + " in " + name_space);
  return tun;
}

/// One way.
class Direction {
 public:
  Direction(int from, int to, const Options& options)
      : from_(from),
        to_(to),
        seconds_per_byte_(8 / (options.rate_mbit * 1e6)),
        delay_(std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(options.delay_ms * 1e-3))) {}

  /// Takes in and hands out what it is time for.
  void turn(Clock::time_point now) {
    while (accepts(now) && take(now)) continue;
    while (!under_way_.empty() && under_way_.front().due <= now) {
      const std::vector<char>& bytes = under_way_.front().bytes;
      if (write(to_, bytes.data(), bytes.size()) < 0 && errno == EAGAIN) return;
      under_way_.pop_front();
    }
  }
  [[nodiscard]] bool accepts(Clock::time_point now) const { return free_at_ <= now + kAhead; }
  /// When turn() has something to do without a new packet.
  [[nodiscard]] Clock::time_point next(Clock::time_point now) const {
    Clock::time_point at = accepts(now) ? Clock::time_point::max() : free_at_ - kAhead;
    if (!under_way_.empty()) at = std::min(at, under_way_.front().due);
    return at;
  }
  [[nodiscard]] int source() const { return from_; }

 private:
  struct Packet {
    Clock::time_point due;
    std::vector<char> bytes;
  };

  bool take(Clock::time_point now) {
    const ssize_t count = read(from_, buffer_.data(), buffer_.size());
    if (count <= 0) return false;
    const auto occupied = std::chrono::duration<double>(static_cast<double>(count) * seconds_per_byte_);
    free_at_ = std::max(free_at_, now) + std::chrono::duration_cast<Clock::duration>(occupied);
    under_way_.push_back({free_at_ + delay_, {buffer_.begin(), buffer_.begin() + count}});
    return true;
  }

  const int from_;
  const int to_;
  const double seconds_per_byte_;
  const Clock::duration delay_;
  Clock::time_point free_at_;     // when the last byte taken in has left
  std::deque<Packet> under_way_;  // bounded by what the cable carries in delay_ and kAhead
  std::vector<char> buffer_ = std::vector<char>(kMaxPacketBytes);
};

[[noreturn]] void forward(std::array<Direction, 2> directions) {
  for (;;) {
    const Clock::time_point now = Clock::now();
    std::array<pollfd, 2> sources{};
    Clock::time_point next = Clock::time_point::max();
    for (size_t i = 0; i < directions.size(); ++i) {
      directions[i].turn(now);
      next = std::min(next, directions[i].next(now));
      sources[i] = {directions[i].accepts(now) ? directions[i].source() : -1, POLLIN, 0};
    }
    const auto wait = std::max(Clock::duration(0), next - Clock::now());
    const timespec timeout{wait / std::chrono::seconds(1), (wait % std::chrono::seconds(1)).count()};
    if (ppoll(sources.data(), sources.size(), next == Clock::time_point::max() ? nullptr : &timeout, nullptr) < 0 &&
        errno != EINTR) {
      fail("ppoll");
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app(
      "slow_link: joins two network namespaces by a tun device in each, with a rate and a delay each way. Says "
      "'ready' when the devices are there; they go when it ends. Needs root and /dev/net/tun.");
  app.add_option("from", options.namespaces[0], "a network namespace, as 'ip netns' knows it")->required();
  app.add_option("to", options.namespaces[1], "the other")->required();
  app.add_option("--device", options.device, "name of the device in both")->capture_default_str();
  app.add_option("--rate-mbit", options.rate_mbit, "Mbit/s each way")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--delay-ms", options.delay_ms, "each way")->capture_default_str()->check(CLI::NonNegativeNumber);
  CLI11_PARSE(app, argc, argv);
  const int a = open_device(options.namespaces[0], options.device);
  const int b = open_device(options.namespaces[1], options.device);
  fmt::print("ready\n");
  std::fflush(stdout);
  forward({Direction(a, b, options), Direction(b, a, options)});
}
