#pragma once

#include "comm/wire.h"
#include "sched/plan/generate_event.h"
#include "sched/plan/request.h"

/// The wire format of requests and of their events, between a front and a ring in another process.
namespace millrace::cluster::remote {

/// Writes all of a request but its grammar and the vocabulary of its reasoning limit, which the ring's node makes.
void put(comm::ByteWriter& out, const sched::GenerateRequest& request);
/// Reads such a request. Its grammar is null, and so is the vocabulary of its reasoning limit.
void get(comm::ByteReader& in, sched::GenerateRequest& request);

void put(comm::ByteWriter& out, const sched::GenerateEvent& event);
void get(comm::ByteReader& in, sched::GenerateEvent& event);

void put(comm::ByteWriter& out, const Error& error);
void get(comm::ByteReader& in, Error& error);

/// Reads an enum whose last value is `last`.
template <class E>
void get_enum(comm::ByteReader& in, E& value, E last) {
  const auto number = in.get<uint8_t>();
  if (number > static_cast<uint8_t>(last)) return in.fail();
  value = static_cast<E>(number);
}

}  // namespace millrace::cluster::remote
