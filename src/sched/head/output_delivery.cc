#include "sched/head/output_delivery.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/check.h"

namespace millrace::sched {
namespace {

int64_t whole_microseconds(async::Duration duration) {
  return std::chrono::duration_cast<std::chrono::microseconds>(duration).count();
}

}  // namespace

void OutputDelivery::add(const Submission& submission) {
  clients_.emplace(submission.id, Client{.request_id = submission.request.id,
                                         .events = submission.events,
                                         .submitted = submission.submitted,
                                         .reports_start = submission.request.reports_start,
                                         .is_pinned = submission.request.ring.has_value()});
}

void OutputDelivery::planned(SequenceId id, async::TimePoint now) {
  Client& client = clients_.at(id);
  if (client.planned) return;
  client.planned = now;
  if (client.reports_start) (void)client.events.try_push({});
}

void OutputDelivery::deliver(SequenceUpdate update, async::TimePoint now) {
  const auto found = clients_.find(update.id);
  if (found == clients_.end()) {
    CHECK(!audit_, "sequence {} has ended already and has another event", update.id.value());
    return;
  }
  Client& client = found->second;
  if (client.planned && !client.has_token) {
    client.timings.queued_us = whole_microseconds(*client.planned - client.submitted);
    client.timings.prefill_us = whole_microseconds(now - *client.planned);
    client.has_token = !update.event.tokens.empty();
  }
  update.event.timings = client.timings;
  const bool last = update.event.last();
  // This precedes the delivery: the receiver may use the request's id again at once.
  if (last) intake_.forget(client.request_id, update.id);
  // The mailbox of a client that has gone is closed, so the event may be lost.
  (void)client.events.try_push(std::move(update.event));
  if (last) clients_.erase(found);
}

void OutputDelivery::fail(const std::vector<SequenceId>& ids, const Error& error, async::TimePoint now) {
  for (const SequenceId id : ids) {
    GenerateEvent event;
    event.error = error;
    deliver({id, std::move(event)}, now);
  }
}

void OutputDelivery::give_back(const std::vector<SequenceId>& ids, const Error& error, async::TimePoint now) {
  for (const SequenceId id : ids) {
    GenerateEvent event;
    event.error = error;
    event.is_returned = true;
    deliver({id, std::move(event)}, now);
  }
}

std::vector<SequenceId> OutputDelivery::movable() const {
  std::vector<SequenceId> found;
  for (const auto& [id, client] : clients_) {
    if (!client.planned && !client.is_pinned) found.push_back(id);
  }
  std::ranges::sort(found);
  return found;
}

void OutputDelivery::abort(const std::vector<SequenceId>& ids, async::TimePoint now) {
  for (const SequenceId id : ids) {
    GenerateEvent event;
    event.finish = FinishReason::kAbort;
    deliver({id, std::move(event)}, now);
  }
}

std::vector<SequenceId> OutputDelivery::ids() const {
  std::vector<SequenceId> all;
  all.reserve(clients_.size());
  for (const auto& [id, client] : clients_) all.push_back(id);
  std::ranges::sort(all);
  return all;
}

OutputDelivery::Expired OutputDelivery::expired(const RequestTimeouts& timeouts, async::TimePoint now) const {
  const auto is_past = [now](async::Duration limit, async::TimePoint since) {
    return limit.count() > 0 && now > since + limit;
  };
  Expired found;
  for (const auto& [id, client] : clients_) {
    if (!client.planned && is_past(timeouts.queue, client.submitted)) found.queued.push_back(id);
    if (is_past(timeouts.prefetch, client.submitted)) found.prefetching.push_back(id);
    if (client.planned && is_past(timeouts.run, *client.planned)) found.running.push_back(id);
  }
  for (auto* ids : {&found.queued, &found.prefetching, &found.running}) std::ranges::sort(*ids);
  return found;
}

}  // namespace millrace::sched
