#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "server/openai/choice_delta.h"
#include "server/openai/error.h"

/// What every API writes its responses from, and the interface of the writers.
namespace millrace::server::openai {

enum class ResponseKind : uint8_t { kCompletion, kChat };

/// Members that all parts of one response share.
struct ResponseInfo {
  ResponseKind kind = ResponseKind::kCompletion;
  std::string id;         ///< "cmpl-…", "chatcmpl-…"
  int64_t created_s = 0;  ///< since the Unix epoch
  std::string model;
  std::string fingerprint;
  bool token_ids = false;  ///< the response holds token ids too
};

/// Counts the tokens of a prediction that were computed ahead, by whether they were drawn.
struct PredictionUsage {
  uint64_t accepted = 0;
  uint64_t rejected = 0;
};

struct Usage {
  uint64_t prompt_tokens = 0;
  uint64_t completion_tokens = 0;
  uint64_t cached_tokens = 0;
  std::optional<uint64_t> reasoning_tokens;    ///< part of completion_tokens; nothing where reasoning is not separated
  std::optional<PredictionUsage> predictions;  ///< nothing without a prediction
};

/// One choice, as the writers take it.
struct ChoiceView {
  uint32_t index = 0;
  const ChoiceDelta& content;
  const TokenizedPrompt& prompt;
};

/// Renders one response in the form of one API. A stream is one start, any number of deltas and keep-alives, and one
/// end or failure; a whole response is one call. Owned by the ResponseTask; used by one thread at a time.
class ResponseWriter {
 public:
  virtual ~ResponseWriter() = default;

  /// Returns whether append_delta uses the usage so far; if not, it gets zeros.
  [[nodiscard]] virtual bool needs_running_usage() const { return false; }
  /// Appends what comes before everything else of a stream. `usage` has the prompt's counts, as far as they are known.
  virtual void append_start(std::string& /*out*/, const Usage& /*usage*/) {}
  /// Appends the events of one delta.
  virtual void append_delta(std::string& out, const ChoiceView& choice, const Usage& usage) = 0;
  /// Appends what keeps an idle stream open; append_start has been called.
  virtual void append_keep_alive(std::string& out) = 0;
  /// Appends the end of a stream whose choices have all finished.
  virtual void append_end(std::string& out, const Usage& usage) = 0;
  /// Appends the end of a stream that fails; append_start has been called.
  virtual void append_failure(std::string& out, const ApiError& error) = 0;
  /// Appends the body of a response that is not streamed.
  virtual void append_response(std::string& out, std::span<const ChoiceView> choices, const Usage& usage) = 0;
};

/// Makes the writer of a response, whose info and options outlive the writer.
using WriterFactory = std::function<std::unique_ptr<ResponseWriter>(const ResponseInfo&, const ChoiceOptions&)>;

}  // namespace millrace::server::openai
