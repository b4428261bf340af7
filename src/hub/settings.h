#pragma once

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>

#include "base/result.h"
#include "hub/proxy.h"
#include "hub/url.h"

namespace millrace::hub {

/// How a hub is reached and where its files are kept. The names are those of the variables that Python's
/// huggingface_hub reads.
struct HubSettings {
  Url endpoint;                   ///< HF_ENDPOINT
  std::string token;              ///< HF_TOKEN, HUGGING_FACE_HUB_TOKEN, or the file HF_TOKEN_PATH; empty: none
  std::filesystem::path cache;    ///< HF_HUB_CACHE, or hub/ in HF_HOME
  std::filesystem::path partial;  ///< files of which a node holds a part, in XDG_CACHE_HOME/millrace
  bool is_offline = false;        ///< HF_HUB_OFFLINE, TRANSFORMERS_OFFLINE
  std::chrono::milliseconds timeout{10'000};     ///< HF_HUB_DOWNLOAD_TIMEOUT: silence after which a request is repeated
  std::chrono::milliseconds retry_delay{1'000};  ///< before the first repetition; doubles with each
  std::chrono::seconds patience{600};            ///< sum of the waits that a server may ask for
  std::string ca_file;                           ///< SSL_CERT_FILE; empty: the system's authorities
  ProxySettings proxies;                         ///< http_proxy, https_proxy, all_proxy, no_proxy
};

/// Returns the value of a variable of this process, or nothing.
[[nodiscard]] std::optional<std::string> process_environment(const char* name);

/// Reads the settings. Errors name the variable at fault.
[[nodiscard]] Result<HubSettings> hub_settings(const Environment& environment = process_environment);

}  // namespace millrace::hub
