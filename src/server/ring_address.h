#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "sched/head/ring_set.h"
#include "server/openai/error.h"

/// How requests address one ring of several.
namespace millrace::server {

/// Returns the number of rings of an engine.
[[nodiscard]] size_t ring_count(sched::Engine& engine);
/// Returns an error that names `param` when the engine has no such ring.
[[nodiscard]] std::optional<openai::ApiError> check_ring(sched::Engine& engine, std::optional<uint32_t> ring,
                                                         std::string_view param);
/// Returns the engine that is this ring alone, or the whole engine where a request names no ring. The ring exists.
[[nodiscard]] sched::Engine& engine_of(sched::Engine& engine, std::optional<uint32_t> ring);

}  // namespace millrace::server
