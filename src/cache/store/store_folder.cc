#include "cache/store/store_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <random>
#include <set>

#include "cache/store/folder_scan.h"

namespace millrace::cache {
namespace {

Error unusable(std::string_view path, std::string_view step) {
  return make_error(ErrorCode::kUnavailable,
                    "page store {}: {}: {}; a directory that can be read, written and locked "
                    "is wanted",
                    path, step, std::strerror(errno));
}

/// Age at which a dead writer's journal goes: writers poll each other's at least every second while the disk answers.
constexpr std::chrono::seconds kMaxJournalAge{60};

bool is_old(int folder, const std::string& name) {
  struct stat status{};
  if (fstatat(folder, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) return false;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return now - std::chrono::seconds(status.st_mtim.tv_sec) >= kMaxJournalAge;
}

std::string random_name() {
  std::random_device device;
  return fmt::format("{:08x}{:08x}{:08x}", device(), device(), device());
}

}  // namespace

Result<std::unique_ptr<StoreFolder>> StoreFolder::open(const std::string& path, const StoreIdentity& identity) {
  const std::string own_path = (std::filesystem::path(path) / hash_of(identity).hex()).string();
  std::error_code failure;
  std::filesystem::create_directories(own_path, failure);
  if (failure) {
    errno = failure.value();
    return unusable(own_path, "making the directory");
  }
  const int folder = ::open(own_path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return unusable(own_path, "opening the directory");
  std::unique_ptr<StoreFolder> store(new StoreFolder(own_path, folder));
  RETURN_IF_ERROR(store->make_layout());
  RETURN_IF_ERROR(store->become_writer());
  store->journal_ = std::make_unique<ChangeJournal>(folder, store->writer_);
  errno = store->journal_->error();
  if (errno != 0) return unusable(own_path, "making " + store->journal_->name());
  store->describe(identity);
  store->remove_leftovers();
  return store;
}

StoreFolder::StoreFolder(std::string path, int folder) : path_(std::move(path)), folder_(folder) {}

StoreFolder::~StoreFolder() {
  journal_.reset();
  if (lock_ >= 0) {
    unlinkat(folder_, fmt::format("tmp/{}{}", writer_, kLockSuffix).c_str(), 0);
    close(lock_);
  }
  close(folder_);
}

std::string StoreFolder::page_name(const PageKey& key) {
  const std::string digits = key.hex();
  return fmt::format("{}/{}", std::string_view(digits).substr(0, 2), digits);
}

std::string StoreFolder::temp_name() {
  return fmt::format("tmp/{}.{}", writer_, temp_count_.fetch_add(1));
}

bool StoreFolder::is_gone() const {
  struct stat status{};
  return fstat(folder_, &status) != 0 || status.st_nlink == 0;
}

Result<void> StoreFolder::make_layout() const {
  std::vector<std::string> names{"tmp"};
  for (int i = 0; i < kFanOut; ++i) names.push_back(fmt::format("{:02x}", i));
  for (const std::string& name : names) {
    if (mkdirat(folder_, name.c_str(), 0777) != 0 && errno != EEXIST) {
      return unusable(path_, fmt::format("making the directory {}", name));
    }
  }
  return {};
}

Result<void> StoreFolder::become_writer() {
  // Another writer may take the new lock first, believe us dead and remove the file; then there is nothing to lock.
  // Ours is shared, on a file open for reading, so that the file system can be made read-only meanwhile.
  for (;;) {
    const std::string writer = random_name();
    const std::string name = fmt::format("tmp/{}{}", writer, kLockSuffix);
    const int lock = openat(folder_, name.c_str(), O_RDONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (lock < 0) return unusable(path_, fmt::format("making {}", name));
    struct stat status{};
    if (flock(lock, LOCK_SH) != 0 || fstat(lock, &status) != 0) {
      const Error failure = unusable(path_, fmt::format("locking {}", name));
      close(lock);
      return failure;
    }
    if (status.st_nlink > 0) {
      lock_ = lock;
      writer_ = writer;
      return {};
    }
    close(lock);
  }
}

void StoreFolder::describe(const StoreIdentity& identity) const {
  const int file = openat(folder_, "identity.txt", O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (file < 0) return;
  std::string text = fmt::format("model {}\nlayers {} to {}\ndtype {}\ntokens per page {}\nbytes per page {}\n",
                                 identity.model_fingerprint, identity.layer_begin, identity.layer_end - 1,
                                 identity.kv_dtype, identity.page_size, identity.page_bytes);
  if (identity.head_end > 0) text += fmt::format("KV heads {} to {}\n", identity.head_begin, identity.head_end - 1);
  if (identity.window > 0) text += fmt::format("window {} tokens\n", identity.window);
  // Nobody but people reads it, so half of it is no harm.
  [[maybe_unused]] const ssize_t written = write(file, text.data(), text.size());
  close(file);
}

void StoreFolder::remove_leftovers() const {
  std::vector<std::string> names;
  for_each_name(folder_, "tmp", [&](int, const char* name) { names.emplace_back(name); });
  std::set<std::string> alive{writer_};
  std::set<std::string> dead;
  for (const std::string& name : names) {
    const std::string writer = name.substr(0, name.find('.'));
    if (!alive.contains(writer) && !dead.contains(writer))
      (is_dead_writer(folder_, writer) ? dead : alive).insert(writer);
    if (!dead.contains(writer)) continue;
    const std::string path = "tmp/" + name;
    if (!name.ends_with(kJournalSuffix) || is_old(folder_, path)) unlinkat(folder_, path.c_str(), 0);
  }
}

void StoreFolder::touch() const {
  utimensat(folder_, "tmp", nullptr, 0);
}

std::vector<StoredPage> StoreFolder::scan() const {
  return pages_in(folder_);
}

}  // namespace millrace::cache
