#pragma once

#include "cluster/remote/ring_messages.h"
#include "comm/wire.h"

/// The wire format of a ring's statistics, between a front and a ring in another process.
namespace millrace::cluster::remote {

void put(comm::ByteWriter& out, const RingFigures& figures);
/// Reads figures. The reader fails where parts disagree on the numbers of stages, ranks or micro-batches in flight.
void get(comm::ByteReader& in, RingFigures& figures);

}  // namespace millrace::cluster::remote
