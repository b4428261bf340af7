// Latent attention with DeepSeek-V3's latents, and the recurrent mixers of Qwen3-Next, on one device.

#include <cmath>

#include "cuda/indexer_kernels.h"
#include "cuda/latent_kernels.h"
#include "cuda/recurrent_kernels.h"
#include "cuda_ops_parts.h"

namespace millrace::bench {
namespace {

constexpr int32_t kIndexedPageSize = 64;

/// A batch of sequences of one length, with pages in order and `rows` new rows each.
class EqualSequences {
 public:
  EqualSequences(int32_t sequences, int32_t context, int32_t rows, int32_t page_size)
      : pages_((context + page_size - 1) / page_size * sequences),
        count_(std::vector<int32_t>{sequences}),
        row_begin_(steps(sequences, rows)),
        prefix_(std::vector<int32_t>(static_cast<size_t>(sequences), context - rows)),
        split_begin_(steps(sequences, cuda::splits_of(rows, context))),
        page_begin_(steps(sequences, pages_ / sequences)),
        page_table_(steps(pages_, 1)),
        bounds_{.rows = sequences * rows,
                .sequences = sequences,
                .sequence_rows = rows,
                .splits = sequences * cuda::splits_of(rows, context),
                .context = context} {}
  [[nodiscard]] int32_t pages() const { return pages_; }
  [[nodiscard]] const cuda::BatchBounds& bounds() const { return bounds_; }
  [[nodiscard]] cuda::DeviceBatch get() const {
    return {.sequence_count = count_.as<int32_t>(),
            .row_begin = row_begin_.as<int32_t>(),
            .prefix = prefix_.as<int32_t>(),
            .split_begin = split_begin_.as<int32_t>(),
            .page_begin = page_begin_.as<int32_t>(),
            .pages = page_table_.as<uint32_t>()};
  }

 private:
  static std::vector<int32_t> steps(int32_t count, int32_t step) {
    std::vector<int32_t> values;
    for (int32_t i = 0; i <= count; ++i) values.push_back(i * step);
    return values;
  }
  int32_t pages_;
  DeviceBytes count_;
  DeviceBytes row_begin_;
  DeviceBytes prefix_;
  DeviceBytes split_begin_;
  DeviceBytes page_begin_;
  DeviceBytes page_table_;
  cuda::BatchBounds bounds_;
};

constexpr int32_t kLatentPageSize = 64;

/// Returns a cache of one layer of latents, without memory.
cuda::DeviceKvCache latent_cache(const tensor::LatentShape& shape, cuda::KvElement element) {
  return {.layer_count = 1,
          .kv_head_count = 1,
          .head_dim = shape.key_dim(),
          .latent_dim = shape.latent_dim,
          .page_size = kLatentPageSize,
          .element = element};
}

/// Returns the seconds of latent attention over sequences whose latents alternate between copies.
double latent_time(cudaStream_t stream, const OpsOptions& options, const tensor::LatentShape& shape,
                   cuda::KvElement element, int32_t sequences, int32_t context, int32_t rows,
                   cuda::MatrixInstruction by) {
  const EqualSequences batch(sequences, context, rows, kLatentPageSize);
  const cuda::DeviceKvCache cache = latent_cache(shape, element);
  const size_t bytes = cuda::kv_page_bytes(cache) * static_cast<size_t>(batch.pages());
  const size_t copies = options.cold_copies(bytes);
  const DeviceBytes latents = random_bf16(bytes / 2 * copies);
  const auto heads = static_cast<size_t>(shape.head_count);
  const DeviceBytes queries =
      random_bf16(heads * cuda::packed_weight_bytes(shape.latent_dim, shape.nope_dim, false) / 2);
  const DeviceBytes values =
      random_bf16(heads * cuda::packed_weight_bytes(shape.value_dim, shape.latent_dim, false) / 2);
  const DeviceBytes frequencies(static_cast<size_t>(shape.rope_dim / 2) * sizeof(float));
  const auto row_count = static_cast<size_t>(sequences * rows);
  const DeviceBytes q(std::vector<float>(row_count * static_cast<size_t>(shape.query_width()), 0.1f));
  const DeviceBytes out(row_count * static_cast<size_t>(shape.output_width()) * sizeof(uint16_t));
  const DeviceBytes workspace(cuda::latent_attention_workspace_bytes(shape, batch.bounds(), by));
  return seconds(
      stream,
      [&](int i) {
        cuda::DeviceKvCache turn = cache;
        turn.data = latents.as<std::byte>() + static_cast<size_t>(i) % copies * bytes;
        cuda::latent_attention(stream, q.as<float>(), shape, {frequencies.as<float>(), shape.rope_dim},
                               {queries.as<>(), values.as<>()}, batch.get(), batch.bounds(), turn, 0, by, out.as<>(),
                               workspace.as<>(), workspace.bytes());
      },
      rows > 1 ? 3 : 20);
}

/// The seconds of an indexer's choice, and of attention over what it has chosen.
struct IndexerTimes {
  double choice = 0.0;
  double attention = 0.0;
};

/// Measures sequences with `rows` new rows each. Keys alternate between copies.
IndexerTimes indexer_times(cudaStream_t stream, const OpsOptions& options, const tensor::IndexerShape& indexer,
                           const tensor::LatentShape& shape, const EqualSequences& batch, cuda::MatrixInstruction by) {
  const cuda::DeviceKvCache cache{.layer_count = 1,
                                  .kv_head_count = 1,
                                  .head_dim = shape.key_dim(),
                                  .latent_dim = shape.latent_dim,
                                  .index_dim = indexer.head_dim,
                                  .page_size = kIndexedPageSize};
  const size_t bytes = cuda::kv_page_bytes(cache) * static_cast<size_t>(batch.pages());
  const size_t copies = options.cold_copies(bytes);
  const DeviceBytes pages = random_bf16(bytes / 2 * copies);
  const auto rows = static_cast<size_t>(batch.bounds().rows);
  const auto heads = static_cast<size_t>(shape.head_count);
  const DeviceBytes to_latents =
      random_bf16(heads * cuda::packed_weight_bytes(shape.latent_dim, shape.nope_dim, false) / 2);
  const DeviceBytes to_values =
      random_bf16(heads * cuda::packed_weight_bytes(shape.value_dim, shape.latent_dim, false) / 2);
  const DeviceBytes frequencies(static_cast<size_t>(shape.rope_dim / 2) * sizeof(float));
  const DeviceBytes index_q(std::vector<float>(rows * static_cast<size_t>(indexer.query_width()), 0.1f));
  const DeviceBytes weights(std::vector<float>(rows * static_cast<size_t>(indexer.head_count), 0.1f));
  const DeviceBytes q(std::vector<float>(rows * static_cast<size_t>(shape.query_width()), 0.1f));
  const DeviceBytes out(rows * static_cast<size_t>(shape.output_width()) * sizeof(uint16_t));
  const DeviceBytes chosen(rows * static_cast<size_t>(indexer.chosen_count) * sizeof(int32_t));
  const DeviceBytes workspace(
      std::max(cuda::choose_tokens_workspace_bytes(indexer, batch.bounds()),
               cuda::sparse_latent_attention_workspace_bytes(shape, indexer.chosen_count, batch.bounds(), by)));
  const auto turn = [&](int i) {
    cuda::DeviceKvCache own = cache;
    own.data = pages.as<std::byte>() + static_cast<size_t>(i) % copies * bytes;
    return own;
  };
  const int repetitions = batch.bounds().sequence_rows > 1 ? 3 : 20;
  const cuda::DeviceRotary rotary{frequencies.as<float>(), shape.rope_dim};
  const double choice = seconds(
      stream,
      [&](int i) {
        cuda::choose_tokens(stream, index_q.as<float>(), weights.as<float>(), indexer, rotary, batch.get(),
                            batch.bounds(), turn(i), 0, chosen.as<int32_t>(), workspace.as<>(), workspace.bytes());
      },
      repetitions);
  const double attention = seconds(
      stream,
      [&](int i) {
        cuda::sparse_latent_attention(stream, q.as<float>(), shape, rotary, {to_latents.as<>(), to_values.as<>()},
                                      chosen.as<int32_t>(), indexer.chosen_count, batch.get(), batch.bounds(), turn(i),
                                      0, by, out.as<>(), workspace.as<>(), workspace.bytes());
      },
      repetitions);
  return {choice, attention};
}

/// Returns the seconds of a delta net whose states alternate between copies.
double delta_time(cudaStream_t stream, const OpsOptions& options, const tensor::DeltaNetShape& shape, int32_t sequences,
                  int32_t rows) {
  constexpr int32_t kPageSize = 64;
  const EqualSequences batch(sequences, rows + 1, rows, kPageSize);
  const cuda::DeviceKvCache cache{
      .layer_count = 1, .state_values = shape.value_width() * shape.key_dim, .page_size = kPageSize};
  const size_t bytes = cuda::kv_page_bytes(cache) * static_cast<size_t>(batch.pages());
  const size_t copies = options.cold_copies(bytes);
  const DeviceBytes states(bytes * copies);
  const auto row_count = static_cast<size_t>(sequences * rows);
  const auto heads = static_cast<size_t>(shape.value_head_count);
  const DeviceBytes mixed(
      std::vector<float>(row_count * static_cast<size_t>(2 * shape.key_width() + shape.value_width()), 0.1f));
  const DeviceBytes gates(row_count * 2 * heads * sizeof(float));
  const DeviceBytes weights(heads * sizeof(float));
  const DeviceBytes out(row_count * static_cast<size_t>(shape.value_width()) * sizeof(float));
  return seconds(
      stream,
      [&](int i) {
        cuda::DeviceKvCache turn = cache;
        turn.data = states.as<std::byte>() + static_cast<size_t>(i) % copies * bytes;
        cuda::delta_net(stream, {.mixed = mixed.as<float>(), .gates = gates.as<float>()}, shape,
                        {.decay = weights.as<float>(), .step_bias = weights.as<float>()}, batch.get(), batch.bounds(),
                        turn, 0, out.as<float>());
      },
      rows > 1 ? 3 : 20);
}

void measure_latents_by(cudaStream_t stream, const OpsOptions& options, const tensor::LatentShape& shape,
                        cuda::KvElement element, cuda::MatrixInstruction by, double copy_rate) {
  for (const int32_t sequences : options.sequences) {
    for (const int32_t context : options.contexts) {
      if (int64_t{sequences} * context > int64_t{1} << 20) continue;
      const double time = latent_time(stream, options, shape, element, sequences, context, 1, by);
      const double bytes =
          static_cast<double>(cuda::latent_token_bytes(latent_cache(shape, element))) * sequences * context;
      fmt::print("decode, {:>3} sequences of {:>5}: {:8.1f} us {:6.0f} GB/s, {:.2f} of copying\n", sequences, context,
                 time * 1e6, bytes / time * 1e-9, bytes / time / copy_rate);
    }
  }
  for (const int32_t prefix : options.prefixes) {
    const int32_t rows = options.prompt_rows;
    const double time = latent_time(stream, options, shape, element, 1, prefix + rows, rows, by);
    const double keys = rows * (static_cast<double>(prefix) + (rows + 1) / 2.0);
    fmt::print("prefill, {} rows after {:>5}: {:8.1f} us {:6.1f} TFLOP/s\n", rows, prefix, time * 1e6,
               2.0 * keys * shape.head_count * (shape.key_dim() + shape.latent_dim) / time * 1e-12);
  }
}

}  // namespace

void measure_latents(cudaStream_t stream, const OpsOptions& options, double copy_rate) {
  for (const int32_t heads : options.latent_heads) {
    const tensor::LatentShape shape{.head_count = heads,
                                    .nope_dim = options.head_dim,
                                    .rope_dim = options.head_dim / 2,
                                    .value_dim = options.head_dim,
                                    .latent_dim = 4 * options.head_dim,
                                    .scale = 0.07f};
    for (const auto by : {cuda::MatrixInstruction::kMma, cuda::MatrixInstruction::kWgmma}) {
      const bool is_mma = by == cuda::MatrixInstruction::kMma;
      if (!is_mma && !options.has_wgmma()) continue;
      for (const auto& [element, name] :
           {std::pair{cuda::KvElement::kBf16, "bf16"}, std::pair{cuda::KvElement::kInt8, "int8"},
            std::pair{cuda::KvElement::kE4M3, "fp8_e4m3"}}) {
        // Codes by the instruction that a stage would use, so that the table stays short.
        if (element != cuda::KvElement::kBf16 && is_mma == options.has_wgmma()) continue;
        fmt::print("\nlatent attention by {}, one layer, {} heads over latents of {}+{} in {}\n",
                   is_mma ? "mma" : "wgmma", heads, shape.latent_dim, shape.rope_dim, name);
        measure_latents_by(stream, options, shape, element, by, copy_rate);
      }
    }
  }
}

void measure_indexers(cudaStream_t stream, const OpsOptions& options, double copy_rate) {
  const auto by = options.has_wgmma() ? cuda::MatrixInstruction::kWgmma : cuda::MatrixInstruction::kMma;
  for (const int32_t heads : options.latent_heads) {
    const tensor::LatentShape shape{.head_count = heads,
                                    .nope_dim = options.head_dim,
                                    .rope_dim = options.head_dim / 2,
                                    .value_dim = options.head_dim,
                                    .latent_dim = 4 * options.head_dim,
                                    .scale = 0.07f};
    const tensor::IndexerShape indexer{.head_count = 64,
                                       .head_dim = options.head_dim,
                                       .rope_dim = options.head_dim / 2,
                                       .chosen_count = 16 * options.head_dim};
    fmt::print("\nindexer of {} heads of {} that chooses {} tokens, attention of {} heads\n", indexer.head_count,
               indexer.head_dim, indexer.chosen_count, heads);
    for (const int32_t sequences : options.sequences) {
      for (const int32_t context : options.contexts) {
        if (context <= indexer.chosen_count || int64_t{sequences} * context > int64_t{1} << 20) continue;
        const EqualSequences batch(sequences, context, 1, kIndexedPageSize);
        const auto [choice, attention] = indexer_times(stream, options, indexer, shape, batch, by);
        const double bytes = 2.0 * indexer.head_dim * sequences * context;
        fmt::print("decode, {:>3} sequences of {:>6}: choice {:8.1f} us, {:.2f} of copying; attention {:8.1f} us\n",
                   sequences, context, choice * 1e6, bytes / choice / copy_rate, attention * 1e6);
      }
    }
    for (const int32_t prefix : options.prefixes) {
      const int32_t rows = options.prompt_rows;
      const EqualSequences batch(1, prefix + rows, rows, kIndexedPageSize);
      const auto [choice, attention] = indexer_times(stream, options, indexer, shape, batch, by);
      fmt::print("prefill, {} rows after {:>5}: choice {:8.1f} us, attention {:8.1f} us\n", rows, prefix, choice * 1e6,
                 attention * 1e6);
    }
  }
}

void measure_states(cudaStream_t stream, const OpsOptions& options, double copy_rate) {
  const tensor::DeltaNetShape shape{.key_head_count = (options.heads + 1) / 2,
                                    .value_head_count = (options.heads + 1) / 2 * 2,
                                    .key_dim = options.head_dim,
                                    .value_dim = options.head_dim};
  fmt::print("\ndelta net, one layer, {} heads of {}x{}\n", shape.value_head_count, shape.key_dim, shape.value_dim);
  const double state_bytes = 8.0 * static_cast<double>(shape.value_width()) * shape.key_dim;  // read and written
  for (const int32_t sequences : options.sequences) {
    const double time = delta_time(stream, options, shape, sequences, 1);
    const double bytes = state_bytes * sequences;
    fmt::print("decode, {:>3} sequences: {:8.1f} us {:6.0f} GB/s, {:.2f} of copying\n", sequences, time * 1e6,
               bytes / time * 1e-9, bytes / time / copy_rate);
  }
  const double time = delta_time(stream, options, shape, 1, options.prompt_rows);
  fmt::print("prompt, {} rows: {:8.1f} us, {:.2f} us per row\n", options.prompt_rows, time * 1e6,
             time * 1e6 / options.prompt_rows);
}

}  // namespace millrace::bench
