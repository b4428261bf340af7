#pragma once

#include <boost/asio/awaitable.hpp>
#include <memory>
#include <string>

#include "base/result.h"
#include "cluster/remote/ring_messages.h"

namespace millrace::grammar {
class Grammar;
class Vocabulary;
}  // namespace millrace::grammar

namespace millrace::cluster::remote {

/// What a RingServer needs of its node besides the engine. Used on the server's Runtime.
class RingHost {
 public:
  virtual ~RingHost() = default;
  /// Compiles the grammar of a GenerateRequest::grammar_source, elsewhere than on the server's thread.
  [[nodiscard]] virtual asio::awaitable<Result<std::shared_ptr<const grammar::Grammar>>> compile(
      std::shared_ptr<const std::string> source) = 0;
  /// Returns what tokens spell, tags of reasoning included.
  [[nodiscard]] virtual std::shared_ptr<const grammar::Vocabulary> tag_vocabulary() = 0;
  /// Returns the metrics of the links, stores and graphs of this node's ring.
  [[nodiscard]] virtual RingMetrics metrics() = 0;
};

}  // namespace millrace::cluster::remote
