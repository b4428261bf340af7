#include "hub/hub_cache.h"

#include <catch2/catch.hpp>
#include <fstream>

#include "hub/content_digest.h"
#include "hub/fetch_progress.h"
#include "hub/file_lock.h"
#include "hub/model_files.h"
#include "hub/partial_file.h"
#include "support/temporary_folder.h"

namespace millrace::hub {
namespace {

const std::string kCommit = "0123456789abcdef0123456789abcdef01234567";
const RepoRef kRepo{.id = "org/name", .revision = "main"};

RepoFile file_of(const std::string& path, uint64_t size_bytes) {
  return {.path = path, .size_bytes = size_bytes, .etag = std::string(40, 'a')};
}

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

TEST_CASE("A digest equals those of git and sha256sum") {
  ContentDigest small(std::string(40, '0'), 5);
  small.add(bytes_of("he"));
  small.add(bytes_of("llo"));
  CHECK(small.finish() == "b6fc4c620b67d95f953a5c1c1230aaab5db5a1b0");  // printf hello | git hash-object --stdin
  ContentDigest large(std::string(64, '0'), 5);
  large.add(bytes_of("hello"));
  CHECK(large.finish() == "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824");
}

TEST_CASE("A commit and its files are found again") {
  const test::TemporaryFolder folder;
  const HubCache cache(folder.path());
  CHECK_FALSE(cache.find_commit(kRepo));
  REQUIRE(cache.record_commit(kRepo, kCommit).has_value());
  CHECK(cache.find_commit(kRepo) == kCommit);
  CHECK(cache.find_commit({.id = "org/name", .revision = kCommit}) == kCommit);
  const RepoListing listing{.commit = kCommit, .files = {file_of("config.json", 3), file_of("a/b.json", 7)}};
  REQUIRE(cache.record_listing(kRepo, listing).has_value());
  const auto found = cache.find_listing(kRepo, kCommit);
  REQUIRE(found);
  REQUIRE(found->files.size() == 2);
  CHECK(found->files[1].path == "a/b.json");
  CHECK(found->files[1].size_bytes == 7);
}

TEST_CASE("A linked blob belongs to the snapshot") {
  const test::TemporaryFolder folder;
  const HubCache cache(folder.path());
  const RepoFile file = file_of("sub/config.json", 3);
  REQUIRE(write_whole_file(cache.blob(kRepo, file), "abc").has_value());
  CHECK_FALSE(cache.contains(kRepo, kCommit, file));
  REQUIRE(cache.link(kRepo, kCommit, file).has_value());
  CHECK(cache.contains(kRepo, kCommit, file));
  CHECK_FALSE(cache.contains(kRepo, kCommit, file_of("sub/config.json", 4)));
  const auto revisions = cache.list();
  REQUIRE(revisions.size() == 1);
  CHECK(revisions[0].id == "org/name");
  CHECK(revisions[0].size_bytes == 3);
}

TEST_CASE("A lock excludes a second holder until it ends") {
  const test::TemporaryFolder folder;
  const auto path = folder.path() / "locks" / "x.lock";
  auto first = FileLock::try_lock(path).value();
  REQUIRE(first);
  CHECK_FALSE(FileLock::try_lock(path).value());
  first.reset();
  CHECK(FileLock::try_lock(path).value());
}

TEST_CASE("Paths of a listing stay in their folder") {
  for (const char* path : {"a", "a/b.json", "..a", "a..b/c"}) CHECK(is_safe_path(path));
  for (const char* path : {"", "/a", "a/", "..", "a/../b", "./a", "a//b", "a\\b"}) CHECK_FALSE(is_safe_path(path));
}

TEST_CASE("The weights of a repository are those of its index") {
  RepoListing listing{.commit = kCommit,
                      .files = {file_of("model-1.safetensors", 1), file_of("model-2.safetensors", 1),
                                file_of("consolidated.safetensors", 1), file_of(std::string(kIndexName), 1)}};
  const auto weights =
      weight_files(listing, R"({"weight_map": {"a": "model-2.safetensors", "b": "model-1.safetensors"}})");
  REQUIRE(weights.has_value());
  REQUIRE(weights->size() == 2);
  CHECK(weights->front().path == "model-1.safetensors");
  const auto missing = weight_files(listing, R"({"weight_map": {"a": "model-3.safetensors"}})");
  REQUIRE(missing.has_error());
  CHECK(missing.error().message.find("model-3.safetensors") != std::string::npos);
  for (const char* index : {"", "[]", "{}", R"({"weight_map": {"a": 1}})"})
    CHECK(weight_files(listing, index).has_error());
  // An index that is of no use gives way to the single file.
  listing.files.push_back(file_of(std::string(kSingleName), 1));
  for (const char* index : {"", "{}", R"({"weight_map": {}})", R"({"weight_map": {"a": "model-3.safetensors"}})",
                            R"({"weight_map": {"a": "model.safetensors"}})"}) {
    const auto single = weight_files(listing, index);
    REQUIRE(single.has_value());
    REQUIRE(single->size() == 1);
    CHECK(single->front().path == kSingleName);
  }
  CHECK(weight_files(listing, R"({"weight_map": {"a": "model-1.safetensors"}})").value().front().path ==
        "model-1.safetensors");
  listing.files = {file_of("pytorch_model.bin", 1)};
  CHECK(weight_files(listing, "").error().code == ErrorCode::kNotFound);
}

TEST_CASE("Descriptions leave out weights and other formats") {
  for (const char* path : {"config.json", "tokenizer.json", "tokenizer.model", "chat_template.jinja", "vocab.txt",
                           "1_Pooling/config.json", "additional_chat_templates/tool_use.jinja"})
    CHECK(is_model_description(path));
  for (const char* path : {"model.safetensors", "original/params.json", "onnx/config.json", "README.md", "a.bin"})
    CHECK_FALSE(is_model_description(path));
}

TEST_CASE("A partial file knows its bytes when it is opened again") {
  const test::TemporaryFolder folder;
  const auto path = folder.path() / "model.safetensors";
  {
    PartialFile file(path, 100);
    file.write(10, bytes_of("hello"));
    file.record({10, 15});
    file.write(50, bytes_of("lost"));  // its download was broken off
  }
  PartialFile again(path, 100);
  CHECK(again.present().all() == std::vector<ByteRange>{{10, 15}});
  CHECK(std::filesystem::file_size(path) == 100);
  CHECK(std::string_view(reinterpret_cast<const char*>(again.read({10, 15}).data()), 5) == "hello");
  PartialFile other(path, 120);  // the repository has another file of this name
  CHECK(other.present().all().empty());
}

TEST_CASE("Two processes fill one partial file") {
  const test::TemporaryFolder folder;
  const auto path = folder.path() / "model.safetensors";
  PartialFile first(path, 100);
  PartialFile second(path, 100);
  first.write(0, bytes_of("hello"));
  first.record({0, 5});
  second.write(10, bytes_of("there"));
  second.record({10, 15});
  CHECK(second.present().all() == std::vector<ByteRange>{{0, 5}, {10, 15}});
  CHECK(PartialFile(path, 100).present().all() == second.present().all());
}

TEST_CASE("Progress names sizes and rate and the time left") {
  using Seconds = std::chrono::duration<double>;
  CHECK(progress_text(0, 50'000'000, 0, Seconds(0)) == "0.0 of 50.0 MB");
  CHECK(progress_text(20'000'000, 50'000'000, 10'000'000, Seconds(1)) == "20.0 of 50.0 MB, 10.0 MB/s, 3 s left");
  CHECK(progress_text(2'000'000'000, 50'000'000'000, 2'000'000'000, Seconds(20)) ==
        "2.0 of 50.0 GB, 100.0 MB/s, 8 min left");
}

}  // namespace
}  // namespace millrace::hub
