#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <stop_token>
#include <string>
#include <vector>

#include "hub/blocking_run.h"
#include "hub/fetch_progress.h"
#include "hub/hub_client.h"
#include "hub/model_fetcher.h"
#include "hub/partial_file.h"
#include "hub/work_list.h"
#include "model/range_source.h"

namespace millrace::hub {

/// The weights of one commit, of which a node downloads the parts that it reads. Its folder holds the index and a
/// partial file for each file of weights. Of a GGUF model it has the files that describe it, too. Owned by a
/// Checkpoint. Thread-safe: one call works at a time.
///
/// Each part is checked for its length, and against the size of the file. Only whole files have a hash.
class PartialCheckpoint final : public model::RangeSource {
 public:
  /// `stop` ends calls with kAborted. Errors: kData when the folder cannot be made; of a GGUF model those of
  /// prepare_file().
  [[nodiscard]] static Result<std::shared_ptr<PartialCheckpoint>> open(const HubSettings& settings, const RepoRef& repo,
                                                                       const FetchedModel& model, std::stop_token stop);

  /// Returns the folder that Checkpoint::open reads.
  [[nodiscard]] const std::filesystem::path& folder() const { return folder_; }
  [[nodiscard]] bool contains(std::string_view file) const override;
  [[nodiscard]] Result<void> prepare_file(const std::string& file) override;
  [[nodiscard]] Result<void> fetch(std::span<const model::FileRange> ranges) override;

 private:
  struct Piece {
    const RepoFile* file = nullptr;
    PartialFile* target = nullptr;
    ByteRange range;
  };

  PartialCheckpoint(const HubSettings& settings, const RepoRef& repo, const FetchedModel& model, std::stop_token stop);
  [[nodiscard]] const RepoFile* find(std::string_view file) const;
  [[nodiscard]] const RepoFile& listed(std::string_view file) const;
  [[nodiscard]] PartialFile& target_of(const RepoFile& file);
  [[nodiscard]] std::vector<Piece> missing_pieces(const RepoFile& file, const std::vector<ByteRange>& wanted);
  /// Copies what describes a GGUF model and brings the headers of its files, since they describe it too.
  [[nodiscard]] Result<void> prepare_gguf(const FetchedModel& model);
  void prepare_header(const RepoFile& file);
  void prepare_gguf_header(const RepoFile& file);
  void download(std::vector<Piece> pieces, bool shows_progress);
  [[nodiscard]] asio::awaitable<void> download_all(async::Runtime& runtime, async::TaskGroup& workers,
                                                   WorkList<Piece>& work, FetchProgress* progress);
  [[nodiscard]] asio::awaitable<void> download_piece(async::Runtime& runtime, HubClient& client, const Piece& piece,
                                                     FetchProgress* progress);
  [[nodiscard]] asio::awaitable<void> receive(HubClient& client, const Piece& piece, uint64_t& done_bytes,
                                              std::optional<std::chrono::seconds>& asked, FetchProgress* progress);

  const HubSettings settings_;
  const RepoRef repo_;
  const std::string commit_;
  const std::vector<RepoFile> files_;
  const bool is_gguf_;
  const std::filesystem::path folder_;
  const std::stop_token stop_;
  std::shared_ptr<asio::ssl::context> tls_;
  std::mutex mutex_;  // of the members below
  std::map<std::string, std::unique_ptr<PartialFile>, std::less<>> targets_;
};

}  // namespace millrace::hub
