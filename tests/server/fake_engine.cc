#include "server/fake_engine.h"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/system/system_error.hpp>
#include <cmath>

#include "async/wait_list.h"
#include "sched/plan/finish_reason.h"
#include "sched/plan/generate_event.h"
#include "server/eventually.h"

namespace millrace::test {

using namespace std::chrono_literals;

std::vector<float> fake_vector(const std::vector<TokenId>& prompt) {
  return {static_cast<float>(prompt.size()), static_cast<float>(prompt.front()), static_cast<float>(prompt.back())};
}

class FakeEngine::Stream final : public sched::TokenStream {
 public:
  Stream(FakeEngine& engine, sched::GenerateRequest request, ScriptedReply reply, asio::any_io_executor executor)
      : engine_(engine), request_(std::move(request)), reply_(std::move(reply)), timer_(executor) {
    ++engine_.live;
    plan();
  }
  ~Stream() override {
    if (!ended_) ++engine_.destroyed_early;
    {
      const std::lock_guard lock(engine_.mutex_);
      engine_.streams_.erase(request_.id);
    }
    --engine_.live;
  }

  asio::awaitable<sched::GenerateEvent> next() override {
    const bool is_pooled = request_.pooling != sched::Pooling::kNone;
    const bool at_end = position_ >= tokens_.size() && (started_ || is_pooled);
    if (reply_.hangs && at_end) {
      co_await pause(1h);
    } else if (!reply_.is_instant) {
      co_await pause(reply_.delay);
    }
    ++engine_.events;
    co_return make_event();
  }

  void abort() {
    aborted_ = true;
    timer_.cancel();
  }

 private:
  void plan() {
    for (const char byte : reply_.text) tokens_.push_back(static_cast<unsigned char>(byte));
    if (reply_.ends_with_eos && !reply_.error && !reply_.hangs) {
      const auto& stops = request_.sampling.stop_token_ids;
      const bool has_eos = std::find(stops.begin(), stops.end(), kEos) != stops.end();
      tokens_.push_back(kEos);
      finish_ = has_eos ? sched::FinishReason::kStop : sched::FinishReason::kLength;
    } else if (!reply_.ends_with_eos) {
      while (!tokens_.empty() && tokens_.size() < request_.max_tokens) {
        tokens_.push_back(tokens_[tokens_.size() - reply_.text.size()]);
      }
    }
    if (tokens_.size() > request_.max_tokens) {
      tokens_.resize(request_.max_tokens);
      finish_ = sched::FinishReason::kLength;
    }
  }

  asio::awaitable<void> pause(std::chrono::nanoseconds duration) {
    if (aborted_) co_return;
    timer_.expires_after(duration);
    const auto [failure] = co_await timer_.async_wait(asio::as_tuple(asio::use_awaitable));
    if (failure && !aborted_) throw boost::system::system_error(failure);
  }

  tensor::TokenLogprobs score(TokenId token, size_t position, int32_t alternatives) const {
    const float logprob = -static_cast<float>(position + 1) / 8;
    tensor::TokenLogprobs scored{token, logprob, 1, {}};
    for (int32_t k = 0; k < alternatives; ++k) {
      scored.top.emplace_back((token + k) % 256, logprob - static_cast<float>(k));
    }
    return scored;
  }

  sched::GenerateEvent make_event() {
    sched::GenerateEvent event;
    event.cached_tokens = reply_.cached_tokens;
    event.timings = {1000, 2000};
    if (!started_ && request_.prompt_top_logprobs >= 0) {
      for (size_t i = 0; i < request_.prompt.size(); ++i) {
        event.prompt_logprobs.push_back(score(request_.prompt[i], i, request_.prompt_top_logprobs));
      }
      event.prompt_logprobs.front().logprob = NAN;
    }
    started_ = true;
    if (aborted_) {
      ended_ = true;
      event.finish = sched::FinishReason::kAbort;
      return event;
    }
    for (size_t i = 0; i < reply_.tokens_per_event && position_ < tokens_.size(); ++i, ++position_) {
      event.tokens.push_back(tokens_[position_]);
      if (request_.sampling.top_logprobs >= 0) {
        event.logprobs.push_back(score(tokens_[position_], position_, request_.sampling.top_logprobs));
      }
    }
    const bool at_end = position_ >= tokens_.size();
    if (at_end && reply_.error && (reply_.error_is_merged || event.tokens.empty())) event.error = reply_.error;
    if (at_end && !reply_.error && !reply_.hangs) event.finish = finish_;
    if (event.finish && request_.pooling != sched::Pooling::kNone) event.pooled = fake_vector(request_.prompt);
    ended_ = event.last();
    return event;
  }

  FakeEngine& engine_;
  const sched::GenerateRequest request_;
  const ScriptedReply reply_;
  asio::steady_timer timer_;
  std::vector<TokenId> tokens_;
  sched::FinishReason finish_ = sched::FinishReason::kLength;
  size_t position_ = 0;
  bool started_ = false;
  bool ended_ = false;
  bool aborted_ = false;
};

FakeEngine::FakeEngine() {
  info.architecture = "FakeForCausalLM";
  info.context_length = kContext;
  info.vocab_size = 258;
  info.hidden_size = kHiddenSize;
  info.parameter_count = 1;
  info.stage_count = 1;
  info.kv_token_capacity = 4096;
  info.concurrency = {{1024, 4, sched::ConcurrencyLimit::kStates}, {4096, 1, sched::ConcurrencyLimit::kTokens}};
  on_submit = [](const sched::GenerateRequest&) { return ScriptedReply{}; };
}

sched::EngineStatus FakeEngine::status() const {
  sched::EngineStatus status;
  status.ready = ready;
  status.paused = paused.has_value();
  if (!ready) status.reason = "stage 1 is silent";
  status.running = static_cast<uint32_t>(live.load());
  status.free_pages = 60;
  status.total_pages = 80;
  status.page_size = 16;
  status.windows = {{.window = 128, .free_pages = 7, .total_pages = 9, .cached_pages = 2}};
  return status;
}

Result<std::unique_ptr<sched::TokenStream>> FakeEngine::submit(sched::GenerateRequest request,
                                                               async::Runtime& runtime) {
  if (!ready) return make_error(ErrorCode::kUnavailable, "stage 1 is silent");
  auto reply = on_submit(request);
  if (reply.has_error()) return reply.error();
  {
    const std::lock_guard lock(mutex_);
    seen_.push_back(request);
  }
  const std::string id = request.id;
  auto stream = std::make_unique<Stream>(*this, std::move(request), std::move(*reply), runtime.executor());
  const std::lock_guard lock(mutex_);
  streams_[id] = stream.get();
  return std::unique_ptr<sched::TokenStream>(std::move(stream));
}

bool FakeEngine::abort(const std::string& request_id) {
  const std::lock_guard lock(mutex_);
  const auto found = streams_.find(request_id);
  if (found == streams_.end()) return false;
  found->second->abort();
  return true;
}

bool FakeEngine::wait_until_live(int count) const {
  return eventually([&] { return live == count; });
}

bool FakeEngine::wait_until_idle() const {
  return wait_until_live(0);
}

std::vector<sched::GenerateRequest> FakeEngine::seen() const {
  const std::lock_guard lock(mutex_);
  return seen_;
}

asio::awaitable<Result<void>> FakeEngine::flush_cache(async::Runtime& runtime, async::Duration timeout) {
  last_patience = timeout;
  Result<void> result;
  if (flush_hangs) {
    ++hanging_flushes;
    try {
      co_await async::sleep_for(runtime, 1h);
    } catch (...) {
      --hanging_flushes;
      throw;
    }
  }
  if (live > 0) {
    result = make_error(ErrorCode::kConflict, "{} requests run and 0 wait", live.load());
  } else {
    ++flushes;
  }
  co_return result;
}

}  // namespace millrace::test
