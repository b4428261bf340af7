#include "app/stage_loading.h"

#include <atomic>
#include <mutex>
#include <numeric>
#include <thread>

#include "app/load_progress.h"
#include "base/thread_affinity.h"
#include "base/thread_name.h"

namespace millrace::app {
namespace {

class StageLoading {
 public:
  using Models = std::vector<std::unique_ptr<model::StageModel>>;

  StageLoading(const model::Checkpoint& checkpoint, const model::ModelConfig& config,
               const std::vector<StageToLoad>& stages, const StageLoadingOptions& options)
      : checkpoint_(checkpoint),
        config_(config),
        stages_(stages),
        options_(options),
        progress_(options.what),
        done_(stages.size()),
        models_(stages.size()) {}

  Result<Models> run() {
    {
      std::vector<std::jthread> threads;
      for (size_t i = 0; i < stages_.size(); ++i) {
        threads.emplace_back([this, i] {
          name_thread("load " + stages_[i].name);
          const ScopedAffinity near(stages_[i].processors);
          load(i);
        });
      }
    }
    if (unexpected_) std::rethrow_exception(unexpected_);
    if (error_) return *error_;
    return std::move(models_);
  }

 private:
  void load(size_t index) {
    const StageToLoad& stage = stages_[index];
    const model::LoadOptions loading{.progress = [&](const model::LoadProgress& done) { note(index, done); },
                                     .threads = options_.threads,
                                     .with_fingerprint = options_.with_fingerprint,
                                     .position = stage.position,
                                     .experts = stage.experts};
    try {
      auto loaded = model::StageModel::load(checkpoint_, config_, stage.span, *stage.backend, options_.limits, loading);
      if (loaded.has_error()) return fail(loaded.error());
      models_[index] = std::move(*loaded);
    } catch (const ErrorException& failure) {
      fail(failure.error());
    } catch (const std::runtime_error& short_of_memory) {
      fail(make_error(ErrorCode::kExhausted, "{}: {}", stage.name, short_of_memory.what()));
    } catch (...) {
      fail_unexpectedly(std::current_exception());
    }
  }

  void note(size_t index, const model::LoadProgress& done) {
    if (failed_) throw ErrorException(Error{ErrorCode::kAborted, "another stage could not be loaded"});
    options_.check_interrupted();
    const std::lock_guard lock(mutex_);
    done_[index] = done;
    model::LoadProgress all;
    for (const model::LoadProgress& each : done_) {
      if (each.bytes_total == 0) return;  // a stage whose size is not known yet
      all.bytes_done += each.bytes_done;
      all.bytes_total += each.bytes_total;
    }
    progress_.update(all);
  }

  /// Records the first failure. Later ones may be its consequence.
  void fail(Error error) {
    const std::lock_guard lock(mutex_);
    if (!failed_.exchange(true)) error_ = std::move(error);
  }
  void fail_unexpectedly(std::exception_ptr failure) {
    const std::lock_guard lock(mutex_);
    if (!failed_.exchange(true)) unexpected_ = std::move(failure);
  }

  const model::Checkpoint& checkpoint_;
  const model::ModelConfig& config_;
  const std::vector<StageToLoad>& stages_;
  const StageLoadingOptions& options_;
  std::atomic<bool> failed_ = false;
  std::mutex mutex_;  // guards the members below except models_, of which each thread sets one
  LoadProgress progress_;
  std::vector<model::LoadProgress> done_;
  std::optional<Error> error_;
  std::exception_ptr unexpected_;
  Models models_;
};

}  // namespace

Result<std::vector<std::unique_ptr<model::StageModel>>> load_stages(const model::Checkpoint& checkpoint,
                                                                    const model::ModelConfig& config,
                                                                    const std::vector<StageToLoad>& stages,
                                                                    const StageLoadingOptions& options) {
  return StageLoading(checkpoint, config, stages, options).run();
}

}  // namespace millrace::app
