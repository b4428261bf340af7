#include <boost/asio/post.hpp>
#include <future>

#include "comm/tcp_support.h"
#include "async/task_group.h"
#include "sched/head/head.h"
#include "sched/stage/local_stages.h"
#include "sim/simulated_runner.h"

using namespace millrace;
using namespace std::chrono_literals;

namespace {

constexpr uint32_t kStageCount = 3;
constexpr size_t kWindow = 5;

/// A thread with its links.
struct Host {
  explicit Host(const std::string& name) : thread(name) {}
  async::IoThread thread;
  comm::TcpLinkGroup links{thread.runtime()};
};

sched::HeadOptions head_options() {
  sched::HeadOptions head;
  head.scheduler.page_size = 4;
  head.scheduler.page_count = 200;
  head.scheduler.max_running = 4;
  head.scheduler.window = kWindow;
  head.scheduler.chunked_prefill_size = 16;
  head.scheduler.context_length = 128;
  head.max_queued = 64;
  head.heartbeat = 50ms;
  head.watchdog = test::kPatience;
  return head;
}

/// The head and three stages, each on a thread of its own as if it were on a host of its own, TCP between all of them.
class TcpRing {
 public:
  TcpRing();
  ~TcpRing();
  [[nodiscard]] sched::Head& head() { return head_; }
  [[nodiscard]] std::vector<comm::LinkStats> stats() const { return head_host_.links.stats(); }
  /// The head's neighbour falls away; the ring forms again.
  void break_once() {
    std::promise<void> broken;
    asio::post(head_host_.thread.runtime().executor(), [this, &broken] {
      head_.break_ring("a test breaks it");
      broken.set_value();
    });
    broken.get_future().get();
  }
  static sim::SimulatedModel model() { return {6, 50}; }

 private:
  [[nodiscard]] asio::awaitable<void> keep_built();
  [[nodiscard]] asio::awaitable<comm::Link> make_link(Host& sender, Host& receiver, comm::LinkHello hello);
  [[nodiscard]] asio::awaitable<void> accept_into(Host& host, comm::LinkHello hello,
                                                  std::unique_ptr<comm::LinkReceiver>& receiver);

  Host head_host_{"head"};
  std::vector<std::unique_ptr<Host>> hosts_;
  sched::Head head_{head_host_.thread.runtime(), head_options()};
  std::vector<std::unique_ptr<sched::LocalStages>> stages_;
  std::unique_ptr<comm::TcpListener> listener_;
  async::TaskGroup tasks_{head_host_.thread.runtime()};
};

TcpRing::TcpRing() {
  const sched::SchedulerOptions scheduler = head_options().scheduler;
  const sched::StageBounds bounds{scheduler.max_running, scheduler.page_size, scheduler.page_count,
                                  scheduler.chunked_prefill_size + scheduler.max_running, model().vocab_size};
  const sched::RingConfig shape{.stage_count = kStageCount, .window = kWindow, .bounds = bounds};
  for (uint32_t i = 0; i < kStageCount; ++i) {
    hosts_.push_back(std::make_unique<Host>("stage"));
    sim::SimulatedStage stage;
    stage.layer_begin = static_cast<int32_t>(2 * i);
    stage.layer_end = stage.layer_begin + 2;
    stage.first = i == 0;
    stage.last = i + 1 == kStageCount;
    const sched::LocalStages::RunnerFactory runner = [stage, bounds](async::Runtime& runtime) {
      return std::make_unique<sim::SimulatedRunner>(runtime, model(), stage, bounds, [] { return uint64_t{0}; });
    };
    stages_.push_back(std::make_unique<sched::LocalStages>(head_host_.thread.runtime(),
                                                           std::vector{&hosts_.back()->thread.runtime()},
                                                           std::vector{runner}, StageId(i), shape));
  }
  listener_ = comm::TcpListener::open(head_host_.thread.runtime(), {"127.0.0.1", 0}).value();
  asio::post(head_host_.thread.runtime().executor(), [this] {
    tasks_.spawn("head", head_.run());
    tasks_.spawn("keep the ring formed", keep_built());
  });
}

TcpRing::~TcpRing() {
  head_.stop();
  head_host_.thread.join();
  for (const auto& host : hosts_) host->thread.join();
}

asio::awaitable<void> TcpRing::accept_into(Host& host, comm::LinkHello hello,
                                           std::unique_ptr<comm::LinkReceiver>& receiver) {
  auto accepted = co_await listener_->accept_link(host.links, hello, test::patient_options(kWindow + 1),
                                                  head_host_.thread.runtime().now() + test::kPatience);
  receiver = std::move(accepted.value());
}

asio::awaitable<comm::Link> TcpRing::make_link(Host& sender, Host& receiver, comm::LinkHello hello) {
  async::Runtime& here = head_host_.thread.runtime();
  comm::Link link;
  async::TaskGroup tasks(here);
  tasks.spawn("accept", accept_into(receiver, hello, link.receiver));
  auto connected = co_await comm::connect_link(here, sender.links, listener_->endpoint(), hello,
                                               test::patient_options(kWindow + 1), here.now() + test::kPatience);
  co_await tasks.join();
  link.sender = std::move(connected.value());
  co_return link;
}

asio::awaitable<void> TcpRing::keep_built() {
  for (uint32_t epoch = 1; !head_.stopping(); ++epoch) {
    comm::LinkHello hello = test::sample_hello();
    hello.epoch = RingEpoch(epoch);
    std::vector<comm::Link> links;  // to stage 0, 1, …, and to the head
    for (uint32_t i = 0; i <= kStageCount; ++i) {
      hello.from = i == 0 ? comm::kHeadId : StageId(i - 1);
      hello.to = i == kStageCount ? comm::kHeadId : StageId(i);
      Host& from = i == 0 ? head_host_ : *hosts_[i - 1];
      Host& to = i == kStageCount ? head_host_ : *hosts_[i];
      auto link = co_await make_link(from, to, hello);
      links.push_back(std::move(link));
    }
    for (uint32_t i = 0; i < kStageCount; ++i) {
      stages_[i]->start(std::move(links[i].receiver), std::move(links[i + 1].sender));
    }
    head_.attach(RingEpoch(epoch), std::move(links.front().sender), std::move(links.back().receiver));
    co_await head_.wait_until_broken();
    for (const auto& stage : stages_) co_await stage->join();
  }
  co_await listener_->shutdown();
}

struct Answer {
  std::vector<TokenId> tokens;
  std::optional<Error> error;
};

asio::awaitable<void> ask(async::Runtime& runtime, sched::Engine& engine, sched::GenerateRequest request,
                          Answer& answer) {
  for (;;) {
    auto stream = engine.submit(request, runtime);
    if (stream.has_error()) {  // the ring is not formed yet
      co_await async::sleep_for(runtime, 5ms);
      continue;
    }
    sched::GenerateEvent event;
    while (!event.last()) {
      event = co_await (*stream)->next();
      answer.tokens.insert(answer.tokens.end(), event.tokens.begin(), event.tokens.end());
    }
    answer.error = event.error;
    co_return;
  }
}

sched::GenerateRequest request_of(uint32_t number) {
  sched::GenerateRequest request;
  request.id = std::to_string(number);
  for (uint32_t i = 0; i < 5 + number * 7 % 60; ++i) {
    request.prompt.push_back(static_cast<TokenId>((i * 13 + number) % 50));
  }
  request.max_tokens = 20 + number % 30;
  return request;
}

/// Asks all at once on a thread of its own.
std::vector<Answer> ask_all(TcpRing& ring, uint32_t first, uint32_t count) {
  std::vector<Answer> answers(count);
  asio::io_context context(1);
  async::RealRuntime runtime(context);
  async::TaskGroup clients(runtime);
  for (uint32_t i = 0; i < count; ++i) {
    clients.spawn("client", ask(runtime, ring.head(), request_of(first + i), answers[i]));
  }
  context.run();
  return answers;
}

}  // namespace

TEST_CASE("TCP: a ring yields the tokens of the model twice") {
  TcpRing ring;
  for (uint32_t round = 0; round < 3; ++round) {
    const uint32_t first = round * 100;
    const std::vector<Answer> answers = ask_all(ring, first, 12);
    for (uint32_t i = 0; i < answers.size(); ++i) {
      const sched::GenerateRequest request = request_of(first + i);
      REQUIRE_FALSE(answers[i].error.has_value());
      REQUIRE(answers[i].tokens ==
              TcpRing::model().generate(request.prompt, request.max_tokens, request.sampling).tokens);
    }
    REQUIRE(ring.stats().size() >= 2);
    ring.break_once();
  }
}
