#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <optional>
#include <span>

#include "async/event.h"
#include "cache/page_key.h"

namespace millrace::cache {

/// A get, put or exists on its way through a worker. The worker reads and writes the operation's own buffer only, so
/// that the caller can give up an operation that hangs. Shared by the caller and the worker; thread-safe.
class StoreOp {
 public:
  enum class Kind { kGet, kPut, kExists };

  /// The spans belong to the caller, and are in use until the operation has ended: `into` [page_bytes] of a get, `page`
  /// [page_bytes] of a put. `done` is set at the end, unless the operation is given up.
  StoreOp(Kind kind, const PageKey& key, std::span<std::byte> into, std::span<const std::byte> page, async::Event done);

  [[nodiscard]] Kind kind() const { return kind_; }
  [[nodiscard]] const PageKey& key() const { return key_; }
  /// Makes the buffer, and copies the page of a put into it. Returns false if the operation has ended. Called by the
  /// worker before its I/O.
  [[nodiscard]] bool begin();
  /// Returns the buffer [page_bytes], aligned for direct I/O; empty for an exists. Called by the worker after begin().
  [[nodiscard]] std::span<std::byte> buffer() { return {buffer_.get(), into_.size() + page_.size()}; }
  /// Ends the operation, and copies what a get has read to the caller. Returns false if it had ended before.
  [[nodiscard]] bool finish(bool ok);
  /// Ends the operation without an event: the caller has stopped waiting. Returns false if it had ended before.
  [[nodiscard]] bool give_up();
  /// Returns the result, after the end.
  [[nodiscard]] bool ok() const;

 private:
  struct Free {
    void operator()(std::byte* bytes) const { std::free(bytes); }
  };

  const Kind kind_;
  const PageKey key_;
  const std::span<std::byte> into_;
  const std::span<const std::byte> page_;
  std::unique_ptr<std::byte[], Free> buffer_;  // used by the worker alone, but for a get's finish()
  mutable std::mutex mutex_;
  std::optional<async::Event> done_;  // none: the operation has ended
  bool ok_ = false;
};
using StoreOpPtr = std::shared_ptr<StoreOp>;

}  // namespace millrace::cache
