#include "base/result.h"

namespace millrace {

std::string_view to_string(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument: return "invalid argument";
    case ErrorCode::kNotFound: return "not found";
    case ErrorCode::kConflict: return "conflict";
    case ErrorCode::kTooLarge: return "too large";
    case ErrorCode::kExhausted: return "exhausted";
    case ErrorCode::kUnavailable: return "unavailable";
    case ErrorCode::kAborted: return "aborted";
    case ErrorCode::kTimeout: return "timeout";
    case ErrorCode::kData: return "bad data";
    case ErrorCode::kInternal: return "internal error";
  }
  return "unknown";
}

}  // namespace millrace
