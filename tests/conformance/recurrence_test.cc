#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <numeric>

#include "conformance/sequences.h"

using namespace millrace;
using namespace millrace::test;
using tensor::DType;

namespace {

constexpr int32_t kLayers = 3;
constexpr int32_t kLayer = 1;

/// What the sums of an op and of its reference may differ by, of a value and of the mean size of its terms.
constexpr double kTolerance = 2e-5;
constexpr double kTermTolerance = 4e-6;

/// An op with a state: its inputs, which are all f32, and its output.
struct RecurrentOp {
  std::string name;
  std::vector<int64_t> input_widths;
  int64_t out_width = 0;
  bool rounds_output = false;  ///< to the compute dtype
  int64_t state_values = 0;
  /// Runs it on matrices of the inputs, the last of which is the output.
  std::function<void(tensor::Backend&, std::span<const DeviceMatrix>, const tensor::UploadedBatch&, tensor::KvCache&)>
      run;
  /// Computes a whole sequence of inputs [rows, width].
  std::function<Values(std::span<const Values>)> reference;
};

/// Makes a vector on a backend that lives as long as the op.
std::shared_ptr<tensor::DeviceVector> shared_vector(tensor::Backend& backend, const Values& values) {
  return backend.make_vector(values);
}

Values positive(Random& random, int64_t count) {
  Values values = random.normal(count);
  for (float& value : values) value = 0.01f + std::abs(value);
  return values;
}

RecurrentOp convolution(tensor::Backend& backend, Random& random, int64_t channels, int32_t width, bool has_bias) {
  const tensor::ConvShape shape{.channels = channels, .width = width};
  const Values weight = random.normal(channels * width);
  const Values bias = has_bias ? random.normal(channels) : Values();
  const auto on_device = shared_vector(backend, weight);
  const auto device_bias = shared_vector(backend, bias);
  const int64_t further = random.integer(0, 40);
  return {.name = fmt::format("causal_conv of {} channels and {} tokens", channels, width),
          .input_widths = {channels + further},
          .out_width = channels,
          .state_values = shape.state_values() + 5,
          .run =
              [=](tensor::Backend& on, std::span<const DeviceMatrix> m, const auto& batch, tensor::KvCache& states) {
                on.causal_conv(m[0].matrix, shape, *on_device, has_bias ? device_bias.get() : nullptr, batch, states,
                               kLayer, m[1].matrix);
              },
          .reference =
              [=](std::span<const Values> in) {
                Values own;
                for (size_t row = 0; row < in[0].size(); row += static_cast<size_t>(channels + further))
                  own.insert(own.end(), in[0].begin() + static_cast<ptrdiff_t>(row),
                             in[0].begin() + static_cast<ptrdiff_t>(row) + channels);
                return reference::silu(reference::causal_conv(own, shape, weight, bias));
              }};
}

RecurrentOp gated_convolution(tensor::Backend& backend, Random& random, int64_t channels, int32_t width,
                              bool has_bias) {
  const tensor::ConvShape shape{.channels = channels, .width = width};
  const Values weight = random.normal(channels * width);
  const Values bias = has_bias ? random.normal(channels) : Values();
  const auto on_device = shared_vector(backend, weight);
  const auto device_bias = shared_vector(backend, bias);
  return {.name = fmt::format("short_conv of {} channels and {} tokens", channels, width),
          .input_widths = {3 * channels},
          .out_width = channels,
          .rounds_output = true,
          .state_values = shape.state_values(),
          .run =
              [=](tensor::Backend& on, std::span<const DeviceMatrix> m, const auto& batch, tensor::KvCache& states) {
                on.short_conv(m[0].matrix, shape, *on_device, has_bias ? device_bias.get() : nullptr, batch, states,
                              kLayer, m[1].matrix);
              },
          .reference = [=](std::span<const Values> in) { return reference::short_conv(in[0], shape, weight, bias); }};
}

RecurrentOp delta_rule(tensor::Backend& backend, Random& random, tensor::DeltaNetShape shape) {
  const int64_t heads = shape.value_head_count;
  const int64_t steps = shape.channel_decay ? shape.key_width() : heads;
  const Values decay = positive(random, heads);
  const Values step_bias = random.normal(steps);
  const auto device_decay = shared_vector(backend, decay);
  const auto device_bias = shared_vector(backend, step_bias);
  shape.state_begin = 7;
  std::vector<int64_t> widths{2 * shape.key_width() + shape.value_width(), (shape.channel_decay ? 1 : 2) * heads};
  if (shape.channel_decay) widths.push_back(steps);
  return {.name = fmt::format("delta_net of {}/{} heads of {} and {}, decays {}", shape.key_head_count, heads,
                              shape.key_dim, shape.value_dim, steps),
          .input_widths = widths,
          .out_width = shape.value_width(),
          .state_values = shape.state_begin + shape.value_width() * shape.key_dim,
          .run =
              [=](tensor::Backend& on, std::span<const DeviceMatrix> m, const auto& batch, tensor::KvCache& states) {
                const tensor::Matrix channels = shape.channel_decay ? m[2].matrix : tensor::Matrix{};
                on.delta_net({.mixed = m[0].matrix, .gates = m[1].matrix, .channel_steps = channels}, shape,
                             *device_decay, *device_bias, batch, states, kLayer, m.back().matrix);
              },
          .reference =
              [=](std::span<const Values> in) {
                return reference::delta_net(
                    {.mixed = in[0], .gates = in[1], .channel_steps = shape.channel_decay ? in[2] : Values{}}, shape,
                    decay, step_bias);
              }};
}

RecurrentOp selective_state(tensor::Backend& backend, Random& random, tensor::StateSpaceShape shape) {
  const Values decay = positive(random, shape.head_count);
  const Values step_bias = random.normal(shape.head_count);
  const Values skip = random.normal(shape.head_count);
  const auto device_decay = shared_vector(backend, decay);
  const auto device_bias = shared_vector(backend, step_bias);
  const auto device_skip = shared_vector(backend, skip);
  shape.min_step = 0.3f;
  shape.max_step = 1.5f;
  shape.state_begin = 3;
  return {.name = fmt::format("state_space of {} heads of {}, {} groups of {}", shape.head_count, shape.head_dim,
                              shape.group_count, shape.state_dim),
          .input_widths = {shape.inner_width() + 2 * shape.group_width(), shape.head_count},
          .out_width = shape.inner_width(),
          .state_values = shape.state_begin + shape.inner_width() * shape.state_dim,
          .run =
              [=](tensor::Backend& on, std::span<const DeviceMatrix> m, const auto& batch, tensor::KvCache& states) {
                on.state_space(m[0].matrix, m[1].matrix, shape, *device_decay, *device_bias, *device_skip, batch,
                               states, kLayer, m[2].matrix);
              },
          .reference =
              [=](std::span<const Values> in) {
                return reference::state_space(in[0], in[1], shape, decay, step_bias, skip);
              }};
}

std::vector<RecurrentOp> random_ops(tensor::Backend& backend, Random& random) {
  std::vector<RecurrentOp> ops;
  ops.push_back(convolution(backend, random, 1, 2, true));
  ops.push_back(convolution(backend, random, random.integer(2, 700), 4, false));
  ops.push_back(convolution(backend, random, 512, 8, true));
  ops.push_back(gated_convolution(backend, random, random.integer(1, 600), 3, false));
  ops.push_back(gated_convolution(backend, random, 64, 4, true));
  const auto small = [&](int64_t high) { return static_cast<int32_t>(random.integer(1, high)); };
  ops.push_back(delta_rule(backend, random,
                           {.key_head_count = 2, .value_head_count = 4, .key_dim = 16, .value_dim = small(150)}));
  ops.push_back(
      delta_rule(backend, random, {.key_head_count = 1, .value_head_count = 1, .key_dim = small(33), .value_dim = 64}));
  ops.push_back(
      delta_rule(backend, random, {.key_head_count = 3, .value_head_count = 3, .key_dim = 128, .value_dim = 128}));
  const int32_t heads = small(3);
  ops.push_back(delta_rule(backend, random,
                           {.key_head_count = heads,
                            .value_head_count = heads,
                            .key_dim = small(150),
                            .value_dim = small(150),
                            .channel_decay = true}));
  ops.push_back(selective_state(backend, random,
                                {.head_count = 6, .head_dim = small(150), .group_count = 2, .state_dim = small(33)}));
  ops.push_back(
      selective_state(backend, random, {.head_count = 4, .head_dim = 64, .group_count = 1, .state_dim = 128}));
  return ops;
}

/// A sequence with the chunks in which it is fed, and its own page per page_size tokens.
struct Fed {
  int32_t length = 0;
  std::vector<Values> inputs;  // [length, width] each
  std::vector<int32_t> chunks;
  std::vector<PageId> pages;
  Values out;     // [fed, out_width]
  Values drafts;  // [drafts, out_width], of the last call with drafts
  int32_t fed = 0;
};

/// Feeds sequences to an op through a cache whose pages hold NaN before they are written.
class StateFeeder {
 public:
  StateFeeder(tensor::Backend& backend, const RecurrentOp& op, int32_t page_size, int32_t page_count)
      : backend_(backend), op_(op), page_size_(page_size) {
    const tensor::KvCacheShape shape{
        .layer_count = kLayers, .page_size = page_size, .page_count = page_count, .state_values = op.state_values};
    cache_ = backend.make_kv_cache(shape);
    std::vector<float> noise(cache_->page_bytes() / sizeof(float), std::nanf(""));
    tensor::Buffer host = backend.allocate_host(cache_->page_bytes());
    std::memcpy(host.data(), noise.data(), cache_->page_bytes());
    backend.run_and_wait([&] {
      for (int32_t page = 0; page < page_count; ++page) {
        const std::array transfers{tensor::PageTransfer{PageId(static_cast<uint32_t>(page)), host.data()}};
        for (int32_t layer = 0; layer < kLayers; ++layer) cache_->write_layer(layer, transfers);
      }
    });
  }

  /// Feeds the next `rows` rows of some sequences together, and after them `drafts` rows each, which do not count. With
  /// `holes` a sequence keeps the pages that it must have, and others by chance.
  void feed(std::span<Fed* const> sequences, std::span<const int32_t> rows, Random* holes,
            std::span<const int32_t> drafts = {}) {
    std::vector<int32_t> row_begin{0};
    std::vector<int32_t> prefix;
    std::vector<int32_t> page_begin{0};
    std::vector<PageId> pages;
    std::vector<Values> inputs(op_.input_widths.size());
    for (size_t s = 0; s < sequences.size(); ++s) {
      const Fed& own = *sequences[s];
      const int32_t all = rows[s] + (drafts.empty() ? 0 : drafts[s]);
      row_begin.push_back(row_begin.back() + all);
      prefix.push_back(own.fed);
      for (size_t i = 0; i < inputs.size(); ++i) {
        const auto from = own.inputs[i].begin() + own.fed * op_.input_widths[i];
        inputs[i].insert(inputs[i].end(), from, from + all * op_.input_widths[i]);
      }
      const auto add_page = [&](size_t page) {
        const auto token = static_cast<int32_t>(page) * page_size_;
        const auto has = [&](int32_t last) { return last >= token && last < token + page_size_; };
        const bool is_needed = has(own.fed - 1) || has(own.fed + rows[s] - 1);
        const bool is_kept = is_needed || holes == nullptr || holes->integer(0, 2) == 0;
        pages.push_back(is_kept ? own.pages[page] : tensor::kNoPage);
      };
      const auto kept_pages = static_cast<size_t>((own.fed + rows[s] + page_size_ - 1) / page_size_);
      for (size_t page = 0; page < (drafts.empty() ? own.pages.size() : kept_pages); ++page) add_page(page);
      page_begin.push_back(static_cast<int32_t>(pages.size()));
    }
    const tensor::BatchLayout batch{
        .row_begin = row_begin, .prefix = prefix, .page_begin = page_begin, .pages = pages, .drafts = drafts};
    const Values out = run(inputs, batch);
    for (size_t s = 0; s < sequences.size(); ++s) {
      const auto begin = out.begin() + row_begin[s] * op_.out_width;
      const auto end = begin + rows[s] * op_.out_width;
      sequences[s]->out.insert(sequences[s]->out.end(), begin, end);
      sequences[s]->drafts.assign(end, out.begin() + row_begin[s + 1] * op_.out_width);
      sequences[s]->fed += rows[s];
    }
  }

 private:
  Values run(const std::vector<Values>& inputs, const tensor::BatchLayout& batch) {
    Values out;
    backend_.run_and_wait([&] {
      std::vector<DeviceMatrix> matrices;
      for (size_t i = 0; i < inputs.size(); ++i) {
        matrices.push_back(make_matrix(backend_, DType::kF32, batch.row_count(), op_.input_widths[i]));
        upload(backend_, inputs[i], matrices.back());
      }
      const DType dtype = op_.rounds_output ? backend_.compute_dtype() : DType::kF32;
      matrices.push_back(make_matrix(backend_, dtype, batch.row_count(), op_.out_width));
      op_.run(backend_, matrices, backend_.upload(batch), *cache_);
      out = download(backend_, matrices.back().matrix);
    });
    return out;
  }

  tensor::Backend& backend_;
  const RecurrentOp& op_;
  int32_t page_size_;
  std::unique_ptr<tensor::KvCache> cache_;
};

std::vector<Fed> random_sequences(Random& random, const RecurrentOp& op, std::span<const int32_t> lengths,
                                  int32_t page_size) {
  std::vector<Fed> sequences;
  uint32_t page = 0;
  for (const int32_t length : lengths) {
    Fed& own = sequences.emplace_back(Fed{.length = length});
    for (const int64_t width : op.input_widths) own.inputs.push_back(random.normal(length * width));
    own.chunks = random_chunks(random, length, random.integer(0, 3) == 0);
    for (int32_t token = 0; token < length; token += page_size) own.pages.emplace_back(page++);
  }
  return sequences;
}

int32_t page_count(const std::vector<Fed>& sequences) {
  return std::accumulate(sequences.begin(), sequences.end(), 0,
                         [](int32_t sum, const Fed& each) { return sum + static_cast<int32_t>(each.pages.size()); });
}

/// Feeds all chunks, of several sequences at a time.
void feed_in_chunks(StateFeeder& feeder, std::vector<Fed>& sequences, Random& random) {
  for (size_t turn = 0;; ++turn) {
    std::vector<Fed*> members;
    std::vector<int32_t> rows;
    for (Fed& each : sequences) {
      if (turn >= each.chunks.size()) continue;
      members.push_back(&each);
      rows.push_back(each.chunks[turn]);
    }
    if (members.empty()) return;
    feeder.feed(members, rows, &random);
  }
}

/// Feeds a sequence alone and whole.
Values whole(tensor::Backend& backend, const RecurrentOp& op, Fed sequence, int32_t page_size) {
  sequence.out.clear();
  sequence.fed = 0;
  for (size_t page = 0; page < sequence.pages.size(); ++page)
    sequence.pages[page] = PageId(static_cast<uint32_t>(page));
  StateFeeder feeder(backend, op, page_size, static_cast<int32_t>(sequence.pages.size()));
  const std::array members{&sequence};
  feeder.feed(members, std::array{sequence.length}, nullptr);
  return sequence.out;
}

}  // namespace

TEST_CASE("ops with a state agree with the reference") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 31);
  for (const BackendCase& backend_case : backend_cases()) {
    const auto backend = backend_case.make();
    if (!backend->computes(tensor::Feature::kRecurrence)) continue;
    for (const RecurrentOp& op : random_ops(*backend, random)) {
      const int32_t page_size = std::array{1, 4, 16, 64}[static_cast<size_t>(random.integer(0, 3))];
      INFO(backend_case.name << ": " << op.name << ", page " << page_size);
      const std::array<int32_t, 3> lengths{1, 100, static_cast<int32_t>(random.integer(2, 40))};
      std::vector<Fed> sequences = random_sequences(random, op, lengths, page_size);
      StateFeeder feeder(*backend, op, page_size, page_count(sequences));
      feed_in_chunks(feeder, sequences, random);
      const double rounding = op.rounds_output ? unit(backend->compute_dtype()) : 0.0;
      for (const Fed& each : sequences) {
        const Values wanted = op.reference(each.inputs);
        check_close(each.out, wanted, rounding + kTolerance, kTolerance + kTermTolerance * root_mean_square(wanted));
      }
    }
  }
}

TEST_CASE("bits of states depend on no cut and on no neighbour") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 32);
  for (const BackendCase& backend_case : backend_cases()) {
    const auto backend = backend_case.make();
    if (!backend->computes(tensor::Feature::kRecurrence)) continue;
    for (const RecurrentOp& op : random_ops(*backend, random)) {
      const int32_t page_size = std::array{1, 3, 16}[static_cast<size_t>(random.integer(0, 2))];
      INFO(backend_case.name << ": " << op.name << ", page " << page_size);
      const std::array<int32_t, 4> lengths{70, 1, 17, static_cast<int32_t>(random.integer(2, 60))};
      std::vector<Fed> sequences = random_sequences(random, op, lengths, page_size);
      StateFeeder feeder(*backend, op, page_size, page_count(sequences));
      feed_in_chunks(feeder, sequences, random);
      // In one page all rows are one run, longer than what kernels take at a time.
      for (const Fed& each : sequences) REQUIRE(each.out == whole(*backend, op, each, 128));
    }
  }
}

TEST_CASE("a sequence continues from the state of a full page") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 33);
  constexpr int32_t kPageSize = 8;
  constexpr int32_t kShared = 2 * kPageSize;
  for (const BackendCase& backend_case : backend_cases()) {
    const auto backend = backend_case.make();
    if (!backend->computes(tensor::Feature::kRecurrence)) continue;
    for (const RecurrentOp& op : random_ops(*backend, random)) {
      INFO(backend_case.name << ": " << op.name);
      std::vector<Fed> sequences = random_sequences(random, op, std::array<int32_t, 2>{40, 40}, kPageSize);
      Fed& first = sequences[0];
      Fed& second = sequences[1];
      for (size_t i = 0; i < op.input_widths.size(); ++i)
        std::copy_n(first.inputs[i].begin(), kShared * op.input_widths[i], second.inputs[i].begin());
      StateFeeder feeder(*backend, op, kPageSize, page_count(sequences));
      feeder.feed(std::array{&first}, std::array{first.length}, nullptr);
      // The second sequence begins after two pages of the first, which it shares.
      std::copy_n(first.pages.begin(), kShared / kPageSize, second.pages.begin());
      second.out.assign(first.out.begin(), first.out.begin() + kShared * op.out_width);
      second.fed = kShared;
      feeder.feed(std::array{&second}, std::array{5}, nullptr);
      feeder.feed(std::array{&second}, std::array{second.length - kShared - 5}, &random);
      REQUIRE(second.out == whole(*backend, op, second, kPageSize));
      // The shared pages did not change: the first one can be continued again.
      Fed again = first;
      again.out.resize(static_cast<size_t>(kShared * op.out_width));
      again.fed = kShared;
      feeder.feed(std::array{&again}, std::array{again.length - kShared}, nullptr);
      REQUIRE(again.out == first.out);
    }
  }
}

TEST_CASE("drafts leave the states before them") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 36);
  for (const BackendCase& backend_case : backend_cases()) {
    const auto backend = backend_case.make();
    if (!backend->computes(tensor::Feature::kStatesBeforeDrafts)) continue;
    for (const RecurrentOp& op : random_ops(*backend, random)) {
      const int32_t page_size = std::array{1, 3, 16}[static_cast<size_t>(random.integer(0, 2))];
      INFO(backend_case.name << ": " << op.name << ", page " << page_size);
      std::vector<Fed> sequences = random_sequences(random, op, std::array<int32_t, 2>{40, 40}, page_size);
      StateFeeder feeder(*backend, op, page_size, page_count(sequences));
      const std::array members{&sequences[0], &sequences[1]};
      const Values first = whole(*backend, op, sequences[0], page_size);
      for (int32_t step = 0; sequences[0].fed < 40; ++step) {
        std::array<int32_t, 2> rows{};
        std::array<int32_t, 2> drafts{};
        for (size_t s = 0; s < 2; ++s) {
          const int32_t left = 40 - members[s]->fed;
          rows[s] = static_cast<int32_t>(random.integer(1, std::min(left, 3)));
          drafts[s] = s == 1 && step == 0 ? 0 : static_cast<int32_t>(random.integer(0, std::min(left - rows[s], 9)));
        }
        if (members[1]->fed == 40) break;
        feeder.feed(members, rows, &random, drafts);
        const auto begin = first.begin() + sequences[0].fed * op.out_width;
        REQUIRE(std::equal(sequences[0].drafts.begin(), sequences[0].drafts.end(), begin));
      }
      for (Fed& each : sequences) {
        const Values wanted = whole(*backend, op, each, page_size);
        REQUIRE(std::equal(each.out.begin(), each.out.end(), wanted.begin()));
      }
    }
  }
}

TEST_CASE("gated_rms_norm agrees with the reference") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 34);
  for (const BackendCase& backend_case : backend_cases()) {
    const auto backend = backend_case.make();
    if (!backend->computes(tensor::Feature::kRecurrence)) continue;
    const bool scales = backend->computes(tensor::Feature::kScaledGates);
    for (const bool gate_first : {false, true}) {
      const int64_t group = random.integer(1, 140);
      const bool is_norm = !scales || random.integer(0, 2) > 0;
      const bool is_sigmoid = is_norm && !gate_first && random.integer(0, 1) > 0;
      const float gate_factor = scales && !is_sigmoid && random.integer(0, 1) > 0 ? 0.35f : 1.0f;
      const int64_t width = group * random.integer(1, 5);
      const bool shares_weight = random.integer(0, 1) == 0;
      const int64_t first_gate = random.integer(0, 20);
      INFO(backend_case.name << ": " << width << " in groups of " << group << ", norm " << is_norm << ", gates by "
                             << gate_factor << ", sigmoid " << is_sigmoid);
      const Values in = random.normal(5 * width, 3.0f);
      const Values gates = random.normal(5 * width, 3.0f);
      const Values weight = is_norm ? random.normal(shares_weight ? group : width) : Values{};
      const auto device_weight = is_norm ? backend->make_vector(weight) : nullptr;
      Values wide;  // [5, first_gate + width + 3]
      for (size_t row = 0; row < 5; ++row) {
        wide.insert(wide.end(), static_cast<size_t>(first_gate), std::nanf(""));
        const auto own = gates.begin() + static_cast<ptrdiff_t>(row) * width;
        wide.insert(wide.end(), own, own + width);
        wide.insert(wide.end(), 3, std::nanf(""));
      }
      Values got;
      backend->run_and_wait([&] {
        const DeviceMatrix from = make_matrix(*backend, DType::kF32, 5, width);
        const DeviceMatrix gate = make_matrix(*backend, DType::kF32, 5, first_gate + width + 3);
        const DeviceMatrix out = make_matrix(*backend, backend->compute_dtype(), 5, width);
        upload(*backend, in, from);
        upload(*backend, wide, gate);
        backend->gated_rms_norm(from.matrix, gate.matrix, first_gate,
                                {.weight = device_weight.get(),
                                 .epsilon = 1e-5f,
                                 .group = group,
                                 .gate_first = gate_first,
                                 .gate_factor = gate_factor,
                                 .sigmoid = is_sigmoid},
                                out.matrix);
        got = download(*backend, out.matrix);
      });
      const reference::GatedNorm norm{
          .epsilon = 1e-5, .group = group, .gate_first = gate_first, .gate_factor = gate_factor, .sigmoid = is_sigmoid};
      check_close(got, reference::gated_rms_norm(in, gates, width, weight, norm), unit(backend->compute_dtype()) + 1e-5,
                  1e-6);
    }
  }
}
