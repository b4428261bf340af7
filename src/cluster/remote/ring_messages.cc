#include "cluster/remote/ring_messages.h"

#include <fmt/format.h>

#include "cluster/remote/figures_wire.h"
#include "cluster/remote/request_wire.h"
#include "comm/wire.h"

namespace millrace::cluster::remote {
namespace {

using comm::ByteReader;
using comm::ByteWriter;
using remote::get;
using remote::put;

void put(ByteWriter& out, const model::Fingerprint& fingerprint) {
  out.put(fingerprint.high);
  out.put(fingerprint.low);
}
void get(ByteReader& in, model::Fingerprint& fingerprint) {
  fingerprint.high = in.get<uint64_t>();
  fingerprint.low = in.get<uint64_t>();
}

/// Writes the protocol first, so that every version can read it.
void put(ByteWriter& out, const RingHello& hello) {
  out.put(hello.facts.protocol);
  out.put(hello.ring);
  put(out, hello.facts.config);
  put(out, hello.facts.vocabulary);
  out.put_string(hello.facts.arithmetic);
  out.put_string(hello.facts.experts);
  out.put(hello.facts.page_size);
}
void get(ByteReader& in, RingHello& hello) {
  hello.facts.protocol = in.get<uint32_t>();
  if (hello.facts.protocol != kRingProtocolVersion) return in.skip_rest();  // its fields may be others
  hello.ring = in.get<uint32_t>();
  get(in, hello.facts.config);
  get(in, hello.facts.vocabulary);
  hello.facts.arithmetic = in.get_string();
  hello.facts.experts = in.get_string();
  hello.facts.page_size = in.get<uint32_t>();
}

template <class T>
  requires std::is_empty_v<T>
void put(ByteWriter&, const T&) {}
template <class T>
  requires std::is_empty_v<T>
void get(ByteReader&, T&) {}

void put(ByteWriter& out, const SubmitRequest& submit) {
  out.put(submit.number);
  put(out, submit.request);
}
void get(ByteReader& in, SubmitRequest& submit) {
  submit.number = in.get<uint64_t>();
  get(in, submit.request);
}

void put(ByteWriter& out, const AbortRequest& abort) {
  out.put(abort.number);
}
void get(ByteReader& in, AbortRequest& abort) {
  abort.number = in.get<uint64_t>();
}

void put(ByteWriter& out, const RequestEvent& event) {
  out.put(event.number);
  put(out, event.event);
}
void get(ByteReader& in, RequestEvent& event) {
  event.number = in.get<uint64_t>();
  get(in, event.event);
}

void put(ByteWriter& out, const PauseRing& pause) {
  out.put(pause.mode);
}
void get(ByteReader& in, PauseRing& pause) {
  get_enum(in, pause.mode, sched::PauseMode::kAbort);
}

void put(ByteWriter& out, const ReturnWaiting& returned) {
  out.put_string(returned.reason);
}
void get(ByteReader& in, ReturnWaiting& returned) {
  returned.reason = in.get_string();
}

void put(ByteWriter& out, const RebuildRing& rebuild) {
  out.put_string(rebuild.reason);
}
void get(ByteReader& in, RebuildRing& rebuild) {
  rebuild.reason = in.get_string();
}

void put(ByteWriter& out, const FlushRing& flush) {
  out.put(flush.number);
  out.put(flush.timeout_us);
}
void get(ByteReader& in, FlushRing& flush) {
  flush.number = in.get<uint64_t>();
  flush.timeout_us = in.get<int64_t>();
}

void put(ByteWriter& out, const StepNews& news) {
  out.put_array(std::span(news.message));
}
void get(ByteReader& in, StepNews& news) {
  news.message = in.get_array<std::byte>();
}

void put(ByteWriter& out, const RingFlushed& flushed) {
  out.put(flushed.number);
  out.put(flushed.error.has_value());
  if (flushed.error) put(out, *flushed.error);
}
void get(ByteReader& in, RingFlushed& flushed) {
  flushed.number = in.get<uint64_t>();
  if (!in.get_bool()) return;
  Error error;
  get(in, error);
  flushed.error = std::move(error);
}

void put(ByteWriter& out, const std::vector<sched::WindowStatus>& windows) {
  out.put(static_cast<uint32_t>(windows.size()));
  for (const auto& [kind, window, free_pages, total_pages, cached_pages, host_pages, cached_host_pages] : windows) {
    out.put(kind);
    out.put(window);
    for (const uint64_t count : {free_pages, total_pages, cached_pages, host_pages, cached_host_pages}) out.put(count);
  }
}
void get(ByteReader& in, std::vector<sched::WindowStatus>& windows) {
  windows.resize(in.get_count(sizeof(uint8_t) + sizeof(uint32_t) + 5 * sizeof(uint64_t)));
  for (sched::WindowStatus& each : windows) {
    get_enum(in, each.kind, GroupKind::kState);
    each.window = in.get<uint32_t>();
    for (uint64_t* count :
         {&each.free_pages, &each.total_pages, &each.cached_pages, &each.host_pages, &each.cached_host_pages})
      *count = in.get<uint64_t>();
  }
}

void put(ByteWriter& out, const sched::EngineStatus& status) {
  const auto& [ready, paused, reason, degraded, running, waiting, free_pages, total_pages, page_size, cached_pages,
               host_pages, cached_host_pages, windows, cache, preemptions, drafts] = status;
  out.put(ready);
  out.put(paused);
  out.put_string(reason);
  out.put_string(degraded);
  for (const uint32_t count : {running, waiting, page_size}) out.put(count);
  for (const uint64_t count : {free_pages, total_pages, cached_pages, host_pages, cached_host_pages, preemptions})
    out.put(count);
  put(out, windows);
  out.put_array(std::span(&cache, 1));
  out.put_array(std::span(&drafts, 1));
}

/// Reads an array of one value.
template <class T>
void get_one(ByteReader& in, T& value) {
  const std::vector<T> values = in.get_array<T>();
  if (values.size() != 1) return in.fail();
  value = values.front();
}

void get(ByteReader& in, sched::EngineStatus& status) {
  status.ready = in.get_bool();
  status.paused = in.get_bool();
  status.reason = in.get_string();
  status.degraded = in.get_string();
  for (uint32_t* count : {&status.running, &status.waiting, &status.page_size}) *count = in.get<uint32_t>();
  for (uint64_t* count : {&status.free_pages, &status.total_pages, &status.cached_pages, &status.host_pages,
                          &status.cached_host_pages, &status.preemptions})
    *count = in.get<uint64_t>();
  get(in, status.windows);
  get_one(in, status.cache);
  get_one(in, status.drafts);
}

void put(ByteWriter& out, const sched::ModelInfo& model) {
  const auto& [architecture, context_length, vocab_size, hidden_size, generates, parameter_count, stage_count,
               rank_count, kv_token_capacity, concurrency] = model;
  out.put_string(architecture);
  for (const uint32_t count : {context_length, vocab_size, hidden_size, stage_count, rank_count}) out.put(count);
  out.put(generates);
  out.put(parameter_count);
  out.put(kv_token_capacity);
  out.put(static_cast<uint32_t>(concurrency.size()));
  for (const sched::Concurrency& each : concurrency) {
    out.put(each.tokens);
    out.put(each.requests);
    out.put(each.limit);
  }
}
void get(ByteReader& in, sched::ModelInfo& model) {
  model.architecture = in.get_string();
  for (uint32_t* count :
       {&model.context_length, &model.vocab_size, &model.hidden_size, &model.stage_count, &model.rank_count})
    *count = in.get<uint32_t>();
  model.generates = in.get_bool();
  model.parameter_count = in.get<uint64_t>();
  model.kv_token_capacity = in.get<uint64_t>();
  model.concurrency.resize(in.get_count(2 * sizeof(uint32_t) + sizeof(sched::ConcurrencyLimit)));
  for (sched::Concurrency& each : model.concurrency) {
    each.tokens = in.get<uint32_t>();
    each.requests = in.get<uint32_t>();
    get_enum(in, each.limit, sched::ConcurrencyLimit::kStates);
  }
}

void put(ByteWriter& out, const RingState& state) {
  put(out, state.status);
  put(out, state.model);
}
void get(ByteReader& in, RingState& state) {
  get(in, state.status);
  get(in, state.model);
}

void put(ByteWriter& out, const RingMetrics& metrics) {
  out.put_string(metrics.text);
}
void get(ByteReader& in, RingMetrics& metrics) {
  metrics.text = in.get_string();
}

template <size_t index>
Result<Content> decode_as(uint8_t kind, ByteReader& in) {
  if constexpr (index == std::variant_size_v<Content>) {
    return make_error(ErrorCode::kData, "message of a ring of unknown kind {}", kind);
  } else {
    if (kind != index) return decode_as<index + 1>(kind, in);
    std::variant_alternative_t<index, Content> content;
    get(in, content);
    if (!in.finished()) return make_error(ErrorCode::kData, "malformed message of a ring of kind {}", kind);
    return Content(std::move(content));
  }
}

}  // namespace

std::vector<std::byte> encode(const Content& content) {
  ByteWriter out;
  out.put(static_cast<uint8_t>(content.index()));
  std::visit([&out](const auto& each) { put(out, each); }, content);
  return out.take();
}

Result<Content> decode(std::span<const std::byte> bytes) {
  ByteReader in(bytes);
  const auto kind = in.get<uint8_t>();
  return decode_as<0>(kind, in);
}

Content content_of(const Message& message) {
  const auto* body = std::get_if<RingMessage>(&message);
  if (body == nullptr) throw_error(ErrorCode::kData, "it sent a message that is not of a ring");
  return decode(body->body).value();
}

std::string difference(const RingFacts& ring, const RingFacts& front) {
  if (ring.protocol != front.protocol) {
    return fmt::format("it speaks protocol {} of rings, wanted {}", ring.protocol, front.protocol);
  }
  if (ring.config != front.config) {
    return fmt::format("its model has fingerprint {}, the front's {}", ring.config.to_string(),
                       front.config.to_string());
  }
  if (ring.vocabulary != front.vocabulary) {
    return fmt::format("its tokenizer and stop tokens have fingerprint {}, the front's {}", ring.vocabulary.to_string(),
                       front.vocabulary.to_string());
  }
  if (ring.arithmetic != front.arithmetic) {
    return fmt::format("it computes in {}, the front's rings in {}", ring.arithmetic, front.arithmetic);
  }
  if (ring.experts != front.experts) {
    const auto named = [](const std::string& experts) { return experts.empty() ? "no experts" : experts; };
    return fmt::format("it shares {}, the front's rings share {}", named(ring.experts), named(front.experts));
  }
  if (ring.page_size != front.page_size) {
    return fmt::format("its --page-size is {}, the front's {}", ring.page_size, front.page_size);
  }
  return {};
}

}  // namespace millrace::cluster::remote
