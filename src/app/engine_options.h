#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "app/page_storage.h"
#include "async/runtime.h"
#include "model/config.h"
#include "sched/head/head.h"

namespace millrace::app {

/// What the flags say of a node's engine; checked by whoever parses them.
struct EngineOptions {
  std::filesystem::path model_path;
  int32_t pp_size = 1;
  std::string layer_partition = "even";  ///< even, auto (by measured cost), or by hand: "15,15,15,16"
  int32_t async_batch_depth = 0;         ///< plans in flight beyond one per stage
  std::string dtype = "auto";            ///< auto, bf16, f32
  std::string device = "auto";           ///< of this node's stages: auto, cpu, cuda
  bool cuda_graphs = true;               ///< replay decode steps on a GPU
  std::string cuda_products = "auto";    ///< instruction of products on a GPU: auto, wgmma, mma
  bool divide_gpu = false;               ///< stages that share a GPU get equal parts of its multiprocessors
  std::string nccl = "auto";             ///< activations to other nodes' GPUs from device to device: auto, on, off
  double nccl_timeout_s = 60;            ///< of one transfer
  std::string cpu_isa = "auto";          ///< of the CPU kernels on every node; auto: as each node says, or its best
  std::string quantization = "none";   ///< of the projections: none (as the checkpoint is), w8, w8a8, w8a8_int8, mxint8
  int32_t threads = 0;                 ///< of the whole process; 0: one per CPU it may use
  bool pin_threads = false;            ///< each of them on a CPU of its own
  int32_t page_size = 64;              ///< tokens
  int64_t max_total_tokens = 0;        ///< of the KV cache; 0: from memory_fraction
  double memory_fraction = 0;          ///< of the memory available at start, for the KV cache; 0: by the device
  int32_t context_length = 0;          ///< 0: the model's own
  int32_t chunked_prefill_size = 512;  ///< prompt tokens per micro-batch
  std::string chunking = "fixed";      ///< fixed, published, balanced
  double chunk_smoothing = 0.75;
  std::string schedule_policy = "fcfs";  ///< fcfs, lpm, priority, shortest
  double queue_timeout_s = 0;            ///< 0: none
  double run_timeout_s = 0;              ///< 0: none
  int32_t max_running_requests = 64;
  int32_t max_queued_requests = 1024;
  int32_t draft_tokens = 8;              ///< that a decode step may have, of one sequence; 0: no drafts
  std::string draft_algorithm = "none";  ///< where drafts come from beside forms and predictions: none, ngram
  double watchdog_timeout_s = 300;
  double ring_timeout_s = 10;
  bool radix_cache = true;                     ///< keep what was computed, for whoever has the same prefix
  bool hierarchical_cache = false;             ///< a host tier behind the device's
  double host_cache_ratio = 2.0;               ///< host pages per device page
  double host_cache_gb = 0;                    ///< over all stages of a node, instead of the ratio; 0: the ratio counts
  std::string write_policy = "write_through";  ///< write_through, write_through_selective, write_back
  std::string prefetch_policy = "best_effort";  ///< best_effort, wait_complete, timeout
  double prefetch_timeout_s = 1.0;
  StorageOptions storage;
};

/// What follows from them.
[[nodiscard]] async::Duration duration_of(double seconds);
/// Plans in flight.
[[nodiscard]] uint32_t window(const EngineOptions& options);
/// Rows that drafts may take of a micro-batch.
[[nodiscard]] uint32_t max_draft_rows(const EngineOptions& options);
/// Rows of the largest micro-batch.
[[nodiscard]] uint32_t max_batch_tokens(const EngineOptions& options);
/// Pages of the KV cache where `capacity` fit the memory and sequences have up to `longest` tokens; 0: no room for one.
[[nodiscard]] uint32_t pool_pages(const EngineOptions& options, int32_t longest, uint64_t capacity);
/// The head's, over pools of so many pages and requests of up to `context_length` tokens; all but what the processors
/// and the model say.
[[nodiscard]] sched::HeadOptions head_options(const EngineOptions& options, const model::ModelConfig& config,
                                              uint32_t page_count, uint32_t host_page_count, uint32_t context_length);

}  // namespace millrace::app
