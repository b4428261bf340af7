#include "cuda_backend/decode_rig.h"

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/use_future.hpp>

#include "golden_test/golden_file.h"
#include "model/families/read_config.h"
#include "model/stage_borders.h"

namespace millrace::test {
namespace {

/// Returns the parameters of a sequence: greedy, random, and with every kind of list on the device.
tensor::SamplingParams sampling_of(size_t sequence) {
  if (sequence % 3 == 0) return {.temperature = 0.0f, .top_logprobs = 2};
  if (sequence % 3 == 1) return {.temperature = 0.9f, .top_p = 0.9f, .seed = 17};
  return {.temperature = 0.8f,
          .repetition_penalty = 1.3f,
          .seed = 5,
          .logit_bias = {{7, 2.0f}, {9, -50.0f}},
          .top_logprobs = 0,
          .min_tokens = 4,
          .stop_token_ids = {1, 2}};
}

}  // namespace

DecodeRig::DecodeRig(std::vector<std::unique_ptr<tensor::Backend>> backends, const Options& options)
    : options_(options), backends_(std::move(backends)), drawn_(options.sequence_count) {
  const auto folder = options.folder.empty() ? golden_folder(options.family) : options.folder;
  checkpoint_ = model::Checkpoint::open(folder).value();
  const model::ModelConfig config = options.config ? *options.config : model::read_config(folder).value();
  const auto stage_count = static_cast<int32_t>(backends_.size());
  const auto spans = model::stage_spans(
      model::move_borders(config, model::divide_layers(config.layer_count(), stage_count).value()).value());
  const auto sequences = static_cast<int32_t>(options.sequence_count);
  for (size_t s = 0; s < spans.size(); ++s) {
    auto model = model::StageModel::load(*checkpoint_, config, spans[s], *backends_[s],
                                         {.max_batch_tokens = options.max_batch_tokens,
                                          .max_logit_rows = 2,
                                          .max_tail_rows = sequences + options.draft_rows})
                     .value();
    model->reserve(sequences, kPagesEach * options.page_size, options.page_size);
    model->allocate_cache(options.page_size, 2 * sequences * kPagesEach);
    group_count_ = static_cast<uint32_t>(model->cache_groups().count());
    has_states_ = model->cache_groups().has_states();
    const sched::ModelRunner::Options runner{
        .vocab_size = static_cast<uint32_t>(config.vocab_size),
        .host_page_counts = std::vector<uint32_t>(group_count_, options.host_page_count),
        .activations_to_host = options.activations_to_host};
    runners_.push_back(std::make_unique<sched::ModelRunner>(thread_.runtime(), std::move(model), runner,
                                                            std::vector<std::unique_ptr<cache::PageStore>>()));
  }
  uint32_t next_page = 0;
  for (size_t s = 0; s < options.sequence_count; ++s) {
    sampling_.push_back(sampling_of(s));
    auto& own = pages_.emplace_back();
    for (int32_t i = 0; i < kPagesEach; ++i) own.emplace_back(next_page++);
  }
  tokens_.resize(options.sequence_count);
  replayed_.resize(options.sequence_count);
}

void DecodeRig::prefill() {
  std::vector<std::vector<TokenId>> prompts(tokens_.size());
  for (size_t s = 0; s < prompts.size(); ++s) {
    for (size_t i = 0; i < options_.first_prompt + options_.prompt_growth * s; ++i)
      prompts[s].push_back(static_cast<TokenId>((i * i + 7 * i + 3 * s) % 500));
  }
  run(prompts, std::vector<size_t>(prompts.size(), 0));
}

void DecodeRig::decode(size_t count) {
  decode(std::vector<std::vector<TokenId>>(count));
}

std::vector<std::vector<TokenId>> DecodeRig::next_tokens() const {
  std::vector<std::vector<TokenId>> tokens = replayed_;
  for (size_t s = 0; s < tokens.size(); ++s) tokens[s].push_back(drawn_[s].back().token);
  return tokens;
}

void DecodeRig::decode(const std::vector<std::vector<TokenId>>& drafts) {
  std::vector<std::vector<TokenId>> tokens = next_tokens();
  std::vector<size_t> counts;
  tokens.resize(drafts.size());
  for (size_t s = 0; s < tokens.size(); ++s) {
    tokens[s].insert(tokens[s].end(), drafts[s].begin(), drafts[s].end());
    counts.push_back(drafts[s].size());
  }
  run(tokens, counts);
}

void DecodeRig::extend(const std::vector<TokenId>& tokens) {
  std::vector<std::vector<TokenId>> all = next_tokens();
  all[0].insert(all[0].end(), tokens.begin(), tokens.end());
  run(all, std::vector<size_t>(all.size(), 0));
}

void DecodeRig::run(const std::vector<std::vector<TokenId>>& tokens, const std::vector<size_t>& drafts) {
  std::vector<int32_t> row_begin{0};
  std::vector<int32_t> prefix;
  std::vector<int32_t> page_begin{0};
  std::vector<PageId> pages;
  std::vector<int32_t> draft_counts;
  std::vector<TokenId> flat;
  std::vector<sched::PlanSlice> slices;
  std::vector<std::vector<TokenId>> histories;
  sched::StageBatch batch;
  for (size_t s = 0; s < tokens.size(); ++s) {
    const size_t before = tokens_[s].size();
    flat.insert(flat.end(), tokens[s].begin(), tokens[s].end());
    row_begin.push_back(static_cast<int32_t>(flat.size()));
    prefix.push_back(static_cast<int32_t>(before));
    const size_t used = (before + tokens[s].size() - 1) / static_cast<size_t>(options_.page_size) + 1;
    pages.insert(pages.end(), pages_[s].begin(), pages_[s].begin() + static_cast<std::ptrdiff_t>(used));
    page_begin.push_back(static_cast<int32_t>(pages.size()));
    draft_counts.push_back(static_cast<int32_t>(drafts[s]));
    slices.push_back({.slot = SlotId(static_cast<uint32_t>(s)),
                      .prefix = static_cast<uint32_t>(before),
                      .token_count = static_cast<uint32_t>(tokens[s].size()),
                      .sample = true,
                      .draft_count = static_cast<uint32_t>(drafts[s]),
                      .replay_count = static_cast<uint32_t>(replayed_[s].size())});
    auto& history = histories.emplace_back(tokens_[s]);
    history.insert(history.end(), tokens[s].begin(), tokens[s].end());
    for (size_t draw = 0; draw <= drafts[s]; ++draw) {
      batch.sample_specs.push_back({.params = &sampling_[s],
                                    .position = history.size() - drafts[s] + draw,
                                    .output_count = static_cast<uint32_t>(drawn_[s].size() + draw),
                                    .prompt = std::span(history).first(before + replayed_[s].size() + draw)});
    }
  }
  batch.layout = {
      .row_begin = row_begin, .prefix = prefix, .page_begin = page_begin, .pages = pages, .drafts = draft_counts};
  batch.tokens = flat;
  batch.slices = slices;
  sched::StageRunner::Result result;
  for (size_t stage = 0; stage < runners_.size(); ++stage) result = run_stage(stage, batch, result.activations);
  for (size_t s = 0; s < tokens.size(); ++s) {
    const auto& samples = result.outputs[s].samples;
    const auto guessed = tokens[s].end() - static_cast<std::ptrdiff_t>(drafts[s]);
    auto accepted = guessed;
    drawn_[s].push_back(samples.at(0));
    for (size_t draft = 1; draft <= drafts[s] && drawn_[s].back().token == *accepted; ++draft) {
      ++accepted;
      drawn_[s].push_back(samples.at(draft));
    }
    tokens_[s].insert(tokens_[s].end(), tokens[s].begin(), has_states_ ? guessed : accepted);
    replayed_[s].assign(has_states_ ? guessed : accepted, accepted);
  }
}

sched::StageRunner::Result DecodeRig::run_stage(size_t stage, const sched::StageBatch& batch,
                                                std::span<const std::byte> input) {
  return asio::co_spawn(thread_.context(), runners_[stage]->run(batch, input), asio::use_future).get();
}

// The page tables of all cache groups are the same.
std::vector<cache::PageCopy> DecodeRig::copies(const std::vector<PageId>& device,
                                               const std::vector<HostPageId>& host) const {
  std::vector<cache::PageCopy> all(group_count_);
  for (uint32_t group = 0; group < group_count_; ++group) {
    all[group].device = device;
    all[group].host = host;
    all[group].group = group;
  }
  return all;
}

void DecodeRig::store(sched::ModelRunner& runner, const std::vector<PageId>& device,
                      const std::vector<HostPageId>& host) {
  for (const cache::PageCopy& copy : copies(device, host)) {
    asio::co_spawn(thread_.context(), runner.store_pages(copy), asio::use_future).get();
  }
}

void DecodeRig::move_pages(const std::function<void()>& before_load) {
  std::vector<PageId> from;
  std::vector<PageId> to;
  std::vector<HostPageId> host;
  const auto shift = static_cast<uint32_t>(pages_.size() * kPagesEach);
  for (size_t s = 0; s < pages_.size(); ++s) {
    const size_t full = tokens_[s].size() / static_cast<size_t>(options_.page_size);
    for (PageId& page : std::span(pages_[s]).first(full)) {
      from.push_back(page);
      host.emplace_back(static_cast<uint32_t>(host.size()));
      page = PageId(page.value() < shift ? page.value() + shift : page.value() - shift);
      to.push_back(page);
    }
  }
  for (const auto& runner : runners_) {
    store(*runner, from, host);
    if (before_load) before_load();
    asio::post(thread_.context(), asio::use_future([&] { (void)runner->begin_load(copies(to, host)); })).get();
  }
}

std::vector<std::byte> DecodeRig::pages() {
  std::vector<PageId> device;
  std::vector<HostPageId> host;
  for (uint32_t page = 0; page < 2 * pages_.size() * kPagesEach; ++page) {
    device.emplace_back(page);
    host.emplace_back(page);
  }
  std::vector<std::byte> all;
  for (const auto& runner : runners_) {
    store(*runner, device, host);
    for (size_t i = 0; i < host.size() * group_count_; ++i) {
      const auto bytes = runner->host_page(static_cast<uint32_t>(i / host.size()), host[i % host.size()]);
      all.insert(all.end(), bytes.begin(), bytes.end());
    }
  }
  return all;
}

std::vector<std::vector<TokenId>> random_drafts(const DecodeRig::Drawn& without_drafts, const DecodeRig::Drawn& drawn,
                                                size_t count, size_t most, std::minstd_rand& random) {
  std::vector<std::vector<TokenId>> drafts(count);
  for (size_t s = 0; s < count; ++s) {
    const size_t next = drawn[s].size();
    const size_t room = std::max(without_drafts[s].size(), next + 1) - next - 1;
    for (size_t i = random() % (std::min(room, most) + 1); i > 0; --i) {
      drafts[s].push_back(without_drafts[s][next + drafts[s].size()].token);
    }
    if (!drafts[s].empty() && random() % 2 == 0) ++drafts[s][random() % drafts[s].size()];
  }
  return drafts;
}

}  // namespace millrace::test
