#include "hub/settings.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <regex>

#include "base/text_file.h"

namespace millrace::hub {
namespace {

constexpr std::string_view kDefaultEndpoint = "https://huggingface.co";

bool is_true(const std::optional<std::string>& value) {
  if (!value) return false;
  std::string lower = *value;
  std::ranges::transform(lower, lower.begin(), [](unsigned char c) { return std::tolower(c); });
  return lower == "1" || lower == "true" || lower == "yes" || lower == "on";
}

std::string trimmed(std::string text) {
  constexpr const char* kWhitespace = " \t\r\n";
  const size_t begin = text.find_first_not_of(kWhitespace);
  if (begin == std::string::npos) return {};
  return text.substr(begin, text.find_last_not_of(kWhitespace) + 1 - begin);
}

/// Returns the first variable that is set and not empty.
std::optional<std::string> first_of(const Environment& environment, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    const auto value = environment(name);
    if (value && !trimmed(*value).empty()) return trimmed(*value);
  }
  return std::nullopt;
}

/// Replaces $NAME and ${NAME} by their values. Variables that are not set stay as they are.
std::string expand_variables(const std::string& text, const Environment& environment) {
  static const std::regex kReference(R"(\$(\w+|\{[^}]*\}))");
  std::string expanded;
  std::string::const_iterator rest = text.begin();
  for (std::sregex_iterator at(text.begin(), text.end(), kReference), end; at != end; ++at) {
    std::string name = at->str(1);
    if (name.starts_with('{')) name = name.substr(1, name.size() - 2);
    expanded.append(rest, (*at)[0].first);
    expanded += environment(name.c_str()).value_or(at->str());
    rest = (*at)[0].second;
  }
  return expanded.append(rest, text.end());
}

/// Returns a path of the environment, in which ~ is the home folder and variables are replaced.
std::filesystem::path expand_path(const std::string& text, const Environment& environment) {
  const std::string path = expand_variables(text, environment);
  const std::filesystem::path home = environment("HOME").value_or("/");
  if (path == "~") return home;
  return path.starts_with("~/") ? home / path.substr(2) : std::filesystem::path(path);
}

Result<std::string> read_token(const Environment& environment, const std::filesystem::path& hf_home) {
  if (is_true(environment("HF_HUB_DISABLE_IMPLICIT_TOKEN"))) return std::string();
  if (const auto token = first_of(environment, {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"})) return *token;
  const auto named = first_of(environment, {"HF_TOKEN_PATH"});
  const auto text = read_optional_text_file(named ? expand_path(*named, environment) : hf_home / "token");
  if (text.has_error()) return text.error();
  return trimmed(*text);
}

Result<std::chrono::milliseconds> read_timeout(const Environment& environment, std::chrono::milliseconds usual) {
  constexpr const char* kName = "HF_HUB_DOWNLOAD_TIMEOUT";
  constexpr double kMaxSeconds = 86'400;
  const auto text = first_of(environment, {kName});
  if (!text) return usual;
  char* end = nullptr;
  const double seconds = std::strtod(text->c_str(), &end);
  if (*end != '\0' || !(seconds > 0) || seconds > kMaxSeconds)
    return make_error(ErrorCode::kInvalidArgument, "{} is '{}', wanted seconds", kName, *text);
  return std::chrono::milliseconds(std::max<int64_t>(1, std::llround(seconds * 1e3)));
}

}  // namespace

std::optional<std::string> process_environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

Result<HubSettings> hub_settings(const Environment& environment) {
  HubSettings settings;
  const auto endpoint = parse_url(first_of(environment, {"HF_ENDPOINT"}).value_or(std::string(kDefaultEndpoint)));
  if (endpoint.has_error()) return make_error(ErrorCode::kInvalidArgument, "HF_ENDPOINT: {}", endpoint.error().message);
  settings.endpoint = *endpoint;
  while (settings.endpoint.target.ends_with('/')) settings.endpoint.target.pop_back();
  const auto xdg = first_of(environment, {"XDG_CACHE_HOME"});
  const std::filesystem::path caches = expand_path(xdg.value_or("~/.cache"), environment);
  const auto hf_home_text = first_of(environment, {"HF_HOME"});
  const std::filesystem::path hf_home = hf_home_text ? expand_path(*hf_home_text, environment) : caches / "huggingface";
  const auto hub_cache = first_of(environment, {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"});
  settings.cache = hub_cache ? expand_path(*hub_cache, environment) : hf_home / "hub";
  settings.partial = caches / "millrace" / "partial";
  settings.is_offline = is_true(first_of(environment, {"HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"}));
  settings.ca_file = first_of(environment, {"SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"}).value_or("");
  const auto token = read_token(environment, hf_home);
  if (token.has_error()) return token.error();
  settings.token = *token;
  const auto timeout = read_timeout(environment, settings.timeout);
  if (timeout.has_error()) return timeout.error();
  settings.timeout = *timeout;
  settings.proxies = proxy_settings(environment);
  return settings;
}

}  // namespace millrace::hub
