#include <catch2/catch.hpp>
#include <map>

#include "hub/repo_ref.h"
#include "hub/settings.h"
#include "hub/url.h"

namespace millrace::hub {
namespace {

Environment environment(std::map<std::string, std::string> variables) {
  return [variables = std::move(variables)](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end()) return std::nullopt;
    return found->second;
  };
}

TEST_CASE("A URL is taken apart and put together again") {
  for (const char* text : {"https://huggingface.co/a/b?c=d%20e", "http://127.0.0.1:8080/", "https://[::1]:99/x",
                           "https://h.example/%2F..%2F"}) {
    CAPTURE(text);
    CHECK(parse_url(text).value().to_string() == text);
  }
  const Url url = parse_url("https://huggingface.co").value();
  CHECK(url.to_string() == "https://huggingface.co/");
  CHECK(url.port == 443);
  CHECK(parse_url("http://[fe80::1]/x").value().host == "fe80::1");
}

TEST_CASE("What is no http URL is refused and quoted") {
  for (const char* text : {"", "huggingface.co", "ftp://host/", "https://", "https://host:0/", "https://host:99999/",
                           "https://a b/", "/path"}) {
    CAPTURE(text);
    const auto url = parse_url(text);
    REQUIRE(url.has_error());
    CHECK(url.error().code == ErrorCode::kInvalidArgument);
  }
}

TEST_CASE("A Location is resolved against its sender") {
  const Url base = parse_url("https://hub.example/a/b?x=1").value();
  CHECK(resolve_location(base, "/c?d=e").value().to_string() == "https://hub.example/c?d=e");
  CHECK(resolve_location(base, "c").value().to_string() == "https://hub.example/a/c");
  CHECK(resolve_location(base, "//cdn.example/z").value().to_string() == "https://cdn.example/z");
  CHECK(resolve_location(base, "http://other:81/y").value().to_string() == "http://other:81/y");
  CHECK(resolve_location(base, "ftp://other/").error().code == ErrorCode::kData);
  CHECK(resolve_location(base, "http://a b/").error().code == ErrorCode::kData);
}

TEST_CASE("Percent encoding keeps what paths may hold") {
  CHECK(percent_encode("a b/c+d~", true) == "a%20b/c%2Bd~");
  CHECK(percent_encode("refs/pr/1", false) == "refs%2Fpr%2F1");
  CHECK(percent_encode("\xC3\xA4", true) == "%C3%A4");
}

TEST_CASE("A repository and its revision are parsed") {
  const RepoRef plain = parse_repo("Qwen/Qwen3-0.6B").value();
  CHECK(plain.id == "Qwen/Qwen3-0.6B");
  CHECK(plain.revision == "main");
  CHECK(parse_repo("gpt2").value().id == "gpt2");
  CHECK(parse_repo("a/b:refs/pr/1").value().revision == "refs/pr/1");
  CHECK(parse_repo("a/b:v1.0").value().to_string() == "a/b:v1.0");
  CHECK(is_commit("0123456789abcdef0123456789abcdef01234567"));
  CHECK_FALSE(is_commit("0123456789ABCDEF0123456789abcdef01234567"));
  CHECK_FALSE(is_commit("main"));
}

TEST_CASE("A repository and its GGUF model are parsed") {
  const RepoRef typed = parse_repo("a/b-GGUF:q4_k_m").value();
  CHECK(typed.id == "a/b-GGUF");
  CHECK(typed.gguf == "q4_k_m");
  CHECK(typed.revision == "main");
  const RepoRef both = parse_repo("a/b:Q8_0", "v1.0").value();
  CHECK(both.gguf == "Q8_0");
  CHECK(both.revision == "v1.0");
  CHECK(parse_repo("a/b:x/m-00001-of-00002.gguf").value().gguf == "x/m-00001-of-00002.gguf");
  // A branch of such a name is named by the flag.
  const RepoRef branch = parse_repo("a/b", "Q8_0").value();
  CHECK(branch.revision == "Q8_0");
  CHECK(branch.gguf.empty());
  CHECK(parse_repo("a/b:v1.0").value().gguf.empty());
  CHECK(parse_repo("a/b:v1.0", "v2").error().code == ErrorCode::kInvalidArgument);
  CHECK(parse_repo("a/b:Q8_0", "../x").error().code == ErrorCode::kInvalidArgument);
}

TEST_CASE("A name that would leave the cache is no repository") {
  for (const char* text : {"", "/", "a/", "/b", "a/b/c", "..", "a/..", "../b", "a--b/c", ".a/b", "a/b.", "a b/c",
                           "a/b:", "a/b:../x", "a/b:x/../y", "a/b:/x", "a/b:x/", "a/b:x//y", "a/b:.git"}) {
    CAPTURE(text);
    const auto repo = parse_repo(text);
    REQUIRE(repo.has_error());
    CHECK(repo.error().code == ErrorCode::kInvalidArgument);
  }
  CHECK(parse_repo(std::string(97, 'a')).has_error());
}

TEST_CASE("Settings follow the variables of the Python library") {
  const HubSettings plain = hub_settings(environment({{"HOME", "/home/u"}})).value();
  CHECK(plain.endpoint.to_string() == "https://huggingface.co");
  CHECK(plain.cache == "/home/u/.cache/huggingface/hub");
  CHECK(plain.token.empty());
  CHECK_FALSE(plain.is_offline);
  const HubSettings xdg = hub_settings(environment({{"HOME", "/home/u"}, {"XDG_CACHE_HOME", "/c"}})).value();
  CHECK(xdg.cache == "/c/huggingface/hub");
  CHECK(xdg.partial == "/c/millrace/partial");
  const HubSettings home = hub_settings(environment({{"HOME", "/home/u"}, {"HF_HOME", "~/hf"}})).value();
  CHECK(home.cache == "/home/u/hf/hub");
  const HubSettings all = hub_settings(environment({{"HF_HUB_CACHE", "/k"},
                                                    {"HF_HOME", "/h"},
                                                    {"HF_ENDPOINT", "http://mirror:8080/hf/"},
                                                    {"HF_TOKEN", " t \n"},
                                                    {"HF_HUB_OFFLINE", "Yes"},
                                                    {"HF_HUB_DOWNLOAD_TIMEOUT", "2.5"}}))
                              .value();
  CHECK(all.cache == "/k");
  CHECK(all.endpoint.target == "/hf");
  CHECK(all.token == "t");
  CHECK(all.is_offline);
  CHECK(all.timeout == std::chrono::milliseconds(2500));
  CHECK(hub_settings(environment({{"HF_TOKEN", "t"}, {"HF_HUB_DISABLE_IMPLICIT_TOKEN", "1"}})).value().token.empty());
}

TEST_CASE("A wrong variable is named") {
  CHECK(hub_settings(environment({{"HF_ENDPOINT", "mirror"}})).error().message.starts_with("HF_ENDPOINT"));
  for (const char* text : {"soon", "0", "-1", "nan", "1e9", "3x"}) {
    CAPTURE(text);
    const auto settings = hub_settings(environment({{"HF_HUB_DOWNLOAD_TIMEOUT", text}}));
    REQUIRE(settings.has_error());
    CHECK(settings.error().message.starts_with("HF_HUB_DOWNLOAD_TIMEOUT"));
  }
}

}  // namespace
}  // namespace millrace::hub
