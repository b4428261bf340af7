#include "hub/partial_checkpoint.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/text_file.h"
#include "hub/model_files.h"
#include "hub/retry.h"
#include "model/gguf_files.h"

namespace millrace::hub {
namespace {

namespace fs = std::filesystem;

constexpr unsigned kPartialContent = 206;
constexpr size_t kParallelPieces = 4;
constexpr uint64_t kPieceBytes = uint64_t{32} << 20;
/// Bytes between two wanted ranges that are fetched along: a request costs as much.
constexpr uint64_t kGapBytes = uint64_t{256} << 10;
/// Most headers of safetensors files are shorter.
constexpr uint64_t kHeaderGuessBytes = uint64_t{64} << 10;
constexpr uint64_t kMaxHeaderBytes = uint64_t{100} << 20;
constexpr size_t kReadBytes = 256 * 1024;
/// Headers of GGUF files have the vocabulary.
constexpr uint64_t kGgufHeaderGuessBytes = uint64_t{1} << 20;
constexpr uint64_t kGgufHeaderGrowth = 4;

fs::path folder_of(const HubSettings& settings, const RepoRef& repo, const std::string& commit) {
  std::string name = repo.id;
  std::ranges::replace(name, '/', '_');
  return settings.partial / name / commit;
}

/// Returns the name of a file without its folder.
std::string_view file_name(const RepoFile& file) {
  return std::string_view(file.path).substr(file.path.rfind('/') + 1);
}

}  // namespace

PartialCheckpoint::PartialCheckpoint(const HubSettings& settings, const RepoRef& repo, const FetchedModel& model,
                                     std::stop_token stop)
    : settings_(settings),
      repo_(repo),
      commit_(model.listing.commit),
      files_(model.weights),
      is_gguf_(model.is_gguf),
      folder_(folder_of(settings, repo, model.listing.commit)),
      stop_(std::move(stop)) {}

Result<std::shared_ptr<PartialCheckpoint>> PartialCheckpoint::open(const HubSettings& settings, const RepoRef& repo,
                                                                   const FetchedModel& model, std::stop_token stop) {
  std::shared_ptr<PartialCheckpoint> made(new PartialCheckpoint(settings, repo, model, std::move(stop)));
  auto tls = make_tls_context(settings.ca_file);
  if (tls.has_error()) return tls.error();
  made->tls_ = *tls;
  const auto index = read_optional_text_file(model.folder / kIndexName);
  if (index.has_error()) return index.error();
  if (!index->empty()) RETURN_IF_ERROR(write_whole_file(made->folder_ / kIndexName, *index));
  if (model.is_gguf) RETURN_IF_ERROR(made->prepare_gguf(model));
  return made;
}

Result<void> PartialCheckpoint::prepare_gguf(const FetchedModel& model) {
  const fs::path folder = fs::path(files_.front().path).parent_path();
  for (const RepoFile& file : description_files(model.listing)) {
    const fs::path path(file.path);
    if (path.parent_path() != folder) continue;
    const auto text = read_text_file(model.folder / path);
    if (text.has_error()) return text.error();
    RETURN_IF_ERROR(write_whole_file(folder_ / path, *text));
  }
  for (const RepoFile& file : files_) RETURN_IF_ERROR(prepare_file(fs::path(file.path).filename()));
  return {};
}

const RepoFile* PartialCheckpoint::find(std::string_view file) const {
  const auto found = std::ranges::find(files_, file, [](const RepoFile& each) { return file_name(each); });
  return found == files_.end() ? nullptr : &*found;
}

bool PartialCheckpoint::contains(std::string_view file) const {
  return find(file) != nullptr;
}

const RepoFile& PartialCheckpoint::listed(std::string_view file) const {
  const RepoFile* found = find(file);
  if (found == nullptr)
    throw_error(ErrorCode::kNotFound, fmt::format("{} has no file '{}' with weights", repo_.to_string(), file));
  return *found;
}

PartialFile& PartialCheckpoint::target_of(const RepoFile& file) {
  auto& target = targets_[file.path];
  if (!target) target = std::make_unique<PartialFile>(folder_ / file.path, file.size_bytes);
  return *target;
}

Result<void> PartialCheckpoint::prepare_file(const std::string& file) {
  const std::lock_guard lock(mutex_);
  try {
    prepare_header(listed(file));
  } catch (const ErrorException& failure) {
    return failure.error();
  }
  return {};
}

void PartialCheckpoint::prepare_header(const RepoFile& file) {
  uint64_t length = 0;
  if (file.size_bytes < sizeof(length)) return;  // whoever opens the file says what is wrong with it
  if (is_gguf_) return prepare_gguf_header(file);
  PartialFile& target = target_of(file);
  download(missing_pieces(file, {{0, std::min(file.size_bytes, kHeaderGuessBytes)}}), false);
  std::memcpy(&length, target.read({0, sizeof(length)}).data(), sizeof(length));
  if (length > std::min(kMaxHeaderBytes, file.size_bytes - sizeof(length))) return;
  download(missing_pieces(file, {{0, sizeof(length) + length}}), false);
}

void PartialCheckpoint::prepare_gguf_header(const RepoFile& file) {
  for (uint64_t guess = kGgufHeaderGuessBytes;; guess *= kGgufHeaderGrowth) {
    const uint64_t present = std::min(file.size_bytes, guess);
    download(missing_pieces(file, {{0, present}}), false);
    auto ranges = model::gguf_description_ranges(folder_ / file.path, present);
    if (ranges.has_error()) throw ErrorException(ranges.error());
    if (!*ranges) continue;
    std::vector<ByteRange> wanted;
    for (const model::FileRange& range : **ranges) wanted.push_back({range.begin, range.end});
    return download(missing_pieces(file, wanted), false);
  }
}

Result<void> PartialCheckpoint::fetch(std::span<const model::FileRange> ranges) {
  const std::lock_guard lock(mutex_);
  try {
    std::map<const RepoFile*, std::vector<ByteRange>> wanted;
    for (const model::FileRange& range : ranges) wanted[&listed(range.file)].push_back({range.begin, range.end});
    std::vector<Piece> pieces;
    for (const auto& [file, parts] : wanted) {
      for (const Piece& piece : missing_pieces(*file, parts)) pieces.push_back(piece);
    }
    download(std::move(pieces), true);
  } catch (const ErrorException& failure) {
    return failure.error();
  }
  return {};
}

std::vector<PartialCheckpoint::Piece> PartialCheckpoint::missing_pieces(const RepoFile& file,
                                                                        const std::vector<ByteRange>& wanted) {
  PartialFile& target = target_of(file);
  std::vector<ByteRange> missing;
  for (const ByteRange& range : wanted) {
    CHECK(range.begin <= range.end && range.end <= file.size_bytes, "bytes {} to {} of {}, which has {}", range.begin,
          range.end, file.path, file.size_bytes);
    for (const ByteRange& part : target.present().missing(range)) missing.push_back(part);
  }
  std::vector<Piece> pieces;
  for (const ByteRange& range : plan_requests(std::move(missing), kGapBytes, kPieceBytes))
    pieces.push_back({.file = &file, .target = &target, .range = range});
  return pieces;
}

void PartialCheckpoint::download(std::vector<Piece> pieces, bool shows_progress) {
  if (pieces.empty()) return;
  if (settings_.is_offline)
    throw_error(
        ErrorCode::kNotFound,
        fmt::format("{}: bytes {} to {} of {} are not in {} (HF_HUB_OFFLINE is set)", repo_.to_string(),
                    pieces.front().range.begin, pieces.front().range.end, pieces.front().file->path, folder_.string()));
  uint64_t total_bytes = 0;
  for (const Piece& piece : pieces) total_bytes += piece.range.size();
  FetchProgress progress(repo_.id, total_bytes, 0);
  WorkList<Piece> work({pieces.begin(), pieces.end()});
  FetchProgress* const shown = shows_progress ? &progress : nullptr;
  const auto done = run_blocking(
      [&](async::Runtime& runtime, async::TaskGroup& workers) { return download_all(runtime, workers, work, shown); },
      stop_);
  if (done.has_error()) throw ErrorException(done.error());
}

asio::awaitable<void> PartialCheckpoint::download_all(async::Runtime& runtime, async::TaskGroup& workers,
                                                      WorkList<Piece>& work, FetchProgress* progress) {
  std::deque<HubClient> clients;
  const size_t count = std::min(kParallelPieces, work.size());
  for (size_t i = 0; i < count; ++i) {
    HubClient& client = clients.emplace_back(runtime, tls_, settings_);
    workers.spawn("fetch parts", work.take_in_turn([this, &runtime, &client, progress](const Piece& piece) {
      return download_piece(runtime, client, piece, progress);
    }));
  }
  co_await join_workers(workers);
  work.check();
}

asio::awaitable<void> PartialCheckpoint::download_piece(async::Runtime& runtime, HubClient& client, const Piece& piece,
                                                        FetchProgress* progress) {
  uint64_t done_bytes = 0;
  Retry retry(settings_.retry_delay, settings_.patience);
  while (done_bytes < piece.range.size()) {
    const uint64_t before = done_bytes;
    Error problem = make_error(ErrorCode::kUnavailable, "{}: the hub broke off {}", repo_.id, piece.file->path);
    std::optional<std::chrono::seconds> asked;
    try {
      co_await receive(client, piece, done_bytes, asked, progress);
    } catch (const ErrorException& failure) {
      problem = failure.error();
    }
    if (done_bytes > before) retry.note_progress();
    if (done_bytes < piece.range.size()) co_await retry.wait(runtime, std::move(problem), asked);
  }
  piece.target->record(piece.range);
}

asio::awaitable<void> PartialCheckpoint::receive(HubClient& client, const Piece& piece, uint64_t& done_bytes,
                                                 std::optional<std::chrono::seconds>& asked, FetchProgress* progress) {
  const HubClient::Range range{.begin = piece.range.begin + done_bytes, .end = piece.range.end};
  const HttpHead head = co_await client.get(client.file_url(repo_.id, commit_, piece.file->path), range);
  if (head.status != kPartialContent) {
    asked = retry_after(head);
    constexpr unsigned kOk = 200;
    if (head.status == kOk)
      throw_error(ErrorCode::kData,
                  fmt::format("{}: the hub sends all of {}, wanted bytes {} to {}: it serves no ranges",
                              repo_.to_string(), piece.file->path, range.begin, range.end));
    throw ErrorException(hub_error(head, settings_, repo_, piece.file->path));
  }
  const std::string wanted = fmt::format("bytes {}-{}/{}", range.begin, range.end - 1, piece.file->size_bytes);
  if (head.field("Content-Range") != wanted)
    throw_error(ErrorCode::kData, fmt::format("{}: the hub sends '{}' of {}, wanted '{}'", repo_.to_string(),
                                              head.field("Content-Range"), piece.file->path, wanted));
  std::vector<std::byte> bytes(kReadBytes);
  while (const size_t count = co_await client.read_some(bytes)) {
    if (count > piece.range.size() - done_bytes)
      throw_error(ErrorCode::kData, fmt::format("{}: the hub sends more than the {} bytes of '{}'", repo_.to_string(),
                                                range.end - range.begin, wanted));
    piece.target->write(piece.range.begin + done_bytes, std::span(bytes).first(count));
    done_bytes += count;
    if (progress != nullptr) progress->add(count);
  }
}

}  // namespace millrace::hub
