#include "sched/plan/plan.h"

#include <bit>
#include <numeric>

#include "base/hash.h"
#include "comm/wire.h"
#include "sched/plan/stage_report_wire.h"

namespace millrace::sched {
namespace {

using comm::ByteReader;
using comm::ByteWriter;
using tensor::SamplingParams;

constexpr uint32_t kPlanMagic = 0x4E414C50;  // "PLAN"
constexpr uint32_t kAcksMagic = 0x534B4341;  // "ACKS"
// Sizes of the smallest encodings, which bound the counts that a hostile message may claim.
constexpr size_t kOpenBytes = 48;
constexpr size_t kCopyBytes = 33;
constexpr size_t kSliceBytes = 30;
constexpr size_t kMaskBytes = 13;
constexpr uint32_t kMaxMaskWords = 1 << 20;
constexpr size_t kBiasBytes = 8;
constexpr size_t kWindowBytes = 8;

void put_sampling(ByteWriter& out, const SamplingParams& params) {
  out.put(params.temperature);
  out.put(params.top_p);
  out.put(params.min_p);
  out.put(params.top_k);
  out.put(params.repetition_penalty);
  out.put(params.frequency_penalty);
  out.put(params.presence_penalty);
  out.put(params.seed);
  out.put(static_cast<uint32_t>(params.logit_bias.size()));
  for (const auto& [token, bias] : params.logit_bias) {
    out.put(token);
    out.put(bias);
  }
  out.put(params.top_logprobs);
  out.put(params.min_tokens);
  out.put_array(std::span(params.stop_token_ids));
}

SamplingParams get_sampling(ByteReader& in) {
  SamplingParams params;
  params.temperature = in.get<float>();
  params.top_p = in.get<float>();
  params.min_p = in.get<float>();
  params.top_k = in.get<int32_t>();
  params.repetition_penalty = in.get<float>();
  params.frequency_penalty = in.get<float>();
  params.presence_penalty = in.get<float>();
  params.seed = in.get<uint64_t>();
  params.logit_bias.resize(in.get_count(kBiasBytes));
  for (auto& [token, bias] : params.logit_bias) {
    token = in.get<TokenId>();
    bias = in.get<float>();
  }
  params.top_logprobs = in.get<int32_t>();
  params.min_tokens = in.get<uint32_t>();
  params.stop_token_ids = in.get_array<TokenId>();
  return params;
}

std::vector<uint32_t> members_of(std::span<const uint32_t> words) {
  std::vector<uint32_t> members;
  for (uint32_t i = 0; i < words.size(); ++i) {
    for (uint32_t rest = words[i]; rest != 0; rest &= rest - 1) {
      members.push_back(i * 32 + static_cast<uint32_t>(std::countr_zero(rest)));
    }
  }
  return members;
}

void put_slice(ByteWriter& out, const PlanSlice& slice) {
  out.put(slice.slot);
  out.put(slice.prefix);
  out.put(slice.token_count);
  out.put(slice.new_page_count);
  out.put(slice.sample);
  out.put(slice.prompt_top_logprobs);
  out.put(slice.next_token);
  out.put(slice.draft_count);
  out.put(slice.replay_count);
  out.put(slice.pooling);
  out.put(slice.second_text);
}

/// Writes a mask as words, or as the list of its members if that is shorter.
void put_mask(ByteWriter& out, const MaskWrite& write) {
  const std::span<const uint32_t> words = write.mask.words();
  const bool as_list = write.mask.count() < words.size();
  out.put(write.index);
  out.put(static_cast<uint32_t>(words.size()));
  out.put(as_list);
  if (as_list) {
    const std::vector<uint32_t> members = members_of(words);
    out.put_array(std::span(members));
  } else {
    out.put_array(words);
  }
}

PlanSlice get_slice(ByteReader& in) {
  PlanSlice slice;
  slice.slot = in.get<SlotId>();
  slice.prefix = in.get<uint32_t>();
  slice.token_count = in.get<uint32_t>();
  slice.new_page_count = in.get<uint32_t>();
  slice.sample = in.get_bool();
  slice.prompt_top_logprobs = in.get<int32_t>();
  slice.next_token = in.get<TokenId>();
  slice.draft_count = in.get<uint32_t>();
  slice.replay_count = in.get<uint32_t>();
  slice.pooling = in.get<SlicePooling>();
  slice.second_text = in.get<uint32_t>();
  return slice;
}

Result<MaskWrite> get_mask(ByteReader& in) {
  MaskWrite write;
  write.index = in.get<uint32_t>();
  const auto word_count = in.get<uint32_t>();
  const bool as_list = in.get_bool();
  std::vector<uint32_t> values = in.get_array<uint32_t>();
  if (word_count > kMaxMaskWords || (!as_list && values.size() != word_count)) {
    return make_error(ErrorCode::kData, "plan: a mask of {} words has {} of them", word_count, values.size());
  }
  if (as_list) {
    std::vector<uint32_t> words(word_count);
    for (const uint32_t member : values) {
      if (member / 32 >= word_count) {
        return make_error(ErrorCode::kData, "plan: token {} in a mask of {} words", member, word_count);
      }
      words[member / 32] |= 1u << (member % 32);
    }
    values = std::move(words);
  }
  write.mask = TokenMask(std::move(values));
  return write;
}

void put_copy(ByteWriter& out, const cache::PageCopy& copy) {
  out.put(copy.id);
  out.put(copy.kind);
  out.put(copy.group);
  out.put_array(std::span(copy.device));
  out.put_array(std::span(copy.host));
  out.put_array(std::span(copy.keys));
  out.put(copy.previous_verify);
}

cache::PageCopy get_copy(ByteReader& in) {
  cache::PageCopy copy;
  copy.id = in.get<cache::CopyId>();
  copy.kind = in.get<cache::CopyKind>();
  copy.group = in.get<uint32_t>();
  copy.device = in.get_array<PageId>();
  copy.host = in.get_array<HostPageId>();
  copy.keys = in.get_array<cache::PageKey>();
  copy.previous_verify = in.get<cache::CopyId>();
  return copy;
}

Result<void> consistent(const cache::PageCopy& copy) {
  using cache::CopyKind;
  const auto kind = static_cast<uint8_t>(copy.kind);
  if (kind >= cache::kCopyKindCount) return make_error(ErrorCode::kData, "plan: a copy of kind {}", kind);
  const bool has_device = copy.kind == CopyKind::kLoad || copy.kind == CopyKind::kStore;
  const bool has_keys = !has_device && copy.kind != CopyKind::kVerify;
  const size_t count = copy.page_count();
  if (copy.device.size() != (has_device ? count : 0) || copy.keys.size() != (has_keys ? count : 0) ||
      copy.host.size() != (copy.kind == CopyKind::kProbe ? 0 : count)) {
    return make_error(ErrorCode::kData, "plan: a copy of kind {} with {} device pages, {} host pages, {} keys", kind,
                      copy.device.size(), copy.host.size(), copy.keys.size());
  }
  return {};
}

Result<void> consistent(const PlanSlice& slice) {
  if (slice.token_count == 0) return Error{ErrorCode::kData, "plan: a slice without tokens"};
  const auto pooling = static_cast<uint8_t>(slice.pooling);
  if (pooling >= kSlicePoolingCount) return make_error(ErrorCode::kData, "plan: pooling of unknown kind {}", pooling);
  if (slice.pooling != SlicePooling::kNone && (slice.sample || slice.prompt_top_logprobs >= 0)) {
    return make_error(ErrorCode::kData, "plan: a slice that is pooled (kind {}) also {}", pooling,
                      slice.sample ? "draws" : "scores");
  }
  const uint64_t drafts = uint64_t{slice.draft_count} + slice.replay_count;
  if (drafts == 0) return {};
  if (drafts < slice.token_count && slice.sample && slice.prompt_top_logprobs < 0) return {};
  return make_error(ErrorCode::kData, "plan: a slice of {} tokens with {} drafts, {} and {}", slice.token_count, drafts,
                    slice.sample ? "draws" : "no draw", slice.prompt_top_logprobs < 0 ? "no scores" : "scores");
}

Result<void> consistent(const PlanWindow& window, size_t slice_count) {
  const uint64_t wanted = std::accumulate(window.counts.begin(), window.counts.end(), uint64_t{0});
  if (window.counts.size() == slice_count && window.pages.size() == wanted) return {};
  return make_error(ErrorCode::kData, "plan: {} pages of a window group for {} slices, its {} counts want {}",
                    window.pages.size(), slice_count, window.counts.size(), wanted);
}

Result<Plan> consistent(Plan plan) {
  uint64_t token_count = 0;
  uint64_t page_count = 0;
  uint64_t sample_count = 0;
  for (const PlanSlice& slice : plan.slices) {
    RETURN_IF_ERROR(consistent(slice));
    token_count += slice.token_count;
    page_count += slice.new_page_count;
    sample_count += slice.sample_count();
  }
  if (!plan.sample_masks.empty() && plan.sample_masks.size() != sample_count) {
    return make_error(ErrorCode::kData, "plan: masks of {} draws, its slices have {}", plan.sample_masks.size(),
                      sample_count);
  }
  if (token_count != plan.tokens.size()) {
    return make_error(ErrorCode::kData, "plan: {} tokens, its slices want {}", plan.tokens.size(), token_count);
  }
  if (page_count != plan.new_pages.size()) {
    return make_error(ErrorCode::kData, "plan: {} new pages, its slices want {}", plan.new_pages.size(), page_count);
  }
  for (const PlanWindow& window : plan.windows) RETURN_IF_ERROR(consistent(window, plan.slices.size()));
  for (const SequenceOpen& open : plan.opens) {
    if (!open.history.empty() && open.history.size() != open.cached_length) {
      return make_error(ErrorCode::kData, "plan: a history of {} tokens for {} cached ones", open.history.size(),
                        open.cached_length);
    }
  }
  for (const cache::PageCopy& copy : plan.copies) RETURN_IF_ERROR(consistent(copy));
  return plan;
}

}  // namespace

uint32_t PlanSlice::tail_rows() const {
  if (prompt_top_logprobs >= 0) return token_count;
  switch (pooling) {
    case SlicePooling::kNone: return sample_count();
    case SlicePooling::kLastRow: return 1;
    case SlicePooling::kFirstRow:
    case SlicePooling::kSum:
    case SlicePooling::kMean: break;
  }
  return token_count;
}

uint64_t table_digest(uint64_t before, PageId page) {
  return mix_bits(before ^ (uint64_t{page.value()} + 1));
}

uint64_t plan_digest(uint64_t before, const PlanSlice& slice, uint64_t table) {
  return mix_bits(before + table + (uint64_t{slice.slot.value()} << 32) + slice.prefix + slice.token_count);
}

uint64_t window_digest(uint64_t before, uint64_t table) {
  return mix_bits(before + table);
}

std::vector<std::byte> Plan::encode() const {
  ByteWriter out;
  out.put(kPlanMagic);
  out.put(id);
  out.put(epoch);
  out.put_array(std::span(closes));
  out.put(static_cast<uint32_t>(opens.size()));
  for (const SequenceOpen& open : opens) {
    out.put(open.slot);
    out.put(open.prompt_length);
    out.put(open.cached_length);
    out.put_array(std::span(open.history));
    put_sampling(out, open.sampling);
  }
  out.put(static_cast<uint32_t>(masks.size()));
  for (const MaskWrite& write : masks) put_mask(out, write);
  out.put(static_cast<uint32_t>(slices.size()));
  for (const PlanSlice& slice : slices) put_slice(out, slice);
  out.put_array(std::span(sample_masks));
  out.put_array(std::span(tokens));
  out.put_array(std::span(new_pages));
  out.put(static_cast<uint32_t>(windows.size()));
  for (const PlanWindow& window : windows) {
    out.put_array(std::span(window.counts));
    out.put_array(std::span(window.pages));
  }
  out.put(static_cast<uint32_t>(copies.size()));
  for (const cache::PageCopy& copy : copies) put_copy(out, copy);
  out.put(digest);
  out.put(step);
  put_reports(out, reports);
  return out.take();
}

Result<Plan> Plan::decode(std::span<const std::byte> bytes) {
  ByteReader in(bytes);
  if (in.get<uint32_t>() != kPlanMagic) return Error{ErrorCode::kData, "plan: wrong magic number"};
  Plan plan;
  plan.id = in.get<PlanId>();
  plan.epoch = in.get<RingEpoch>();
  plan.closes = in.get_array<SlotId>();
  plan.opens.resize(in.get_count(kOpenBytes));
  for (SequenceOpen& open : plan.opens) {
    open.slot = in.get<SlotId>();
    open.prompt_length = in.get<uint32_t>();
    open.cached_length = in.get<uint32_t>();
    open.history = in.get_array<TokenId>();
    open.sampling = get_sampling(in);
  }
  for (size_t left = in.get_count(kMaskBytes); left > 0; --left) {
    auto mask = get_mask(in);
    if (mask.has_error()) return mask.error();
    plan.masks.push_back(std::move(*mask));
  }
  plan.slices.resize(in.get_count(kSliceBytes));
  for (PlanSlice& slice : plan.slices) slice = get_slice(in);
  plan.sample_masks = in.get_array<int32_t>();
  plan.tokens = in.get_array<TokenId>();
  plan.new_pages = in.get_array<PageId>();
  plan.windows.resize(in.get_count(kWindowBytes));
  for (PlanWindow& window : plan.windows) {
    window.counts = in.get_array<uint32_t>();
    window.pages = in.get_array<PageId>();
  }
  plan.copies.resize(in.get_count(kCopyBytes));
  for (cache::PageCopy& copy : plan.copies) copy = get_copy(in);
  plan.digest = in.get<uint64_t>();
  plan.step = in.get<uint64_t>();
  plan.reports = get_reports(in);
  if (!in.finished()) return make_error(ErrorCode::kData, "plan: malformed message of {} bytes", bytes.size());
  return consistent(std::move(plan));
}

std::vector<std::byte> encode_acks(std::span<const cache::CopyAck> acks) {
  ByteWriter out;
  out.put(kAcksMagic);
  out.put(static_cast<uint32_t>(acks.size()));
  for (const cache::CopyAck& ack : acks) {
    out.put(ack.copy);
    out.put(ack.done);
  }
  return out.take();
}

Result<std::vector<cache::CopyAck>> decode_acks(std::span<const std::byte> bytes) {
  ByteReader in(bytes);
  if (in.get<uint32_t>() != kAcksMagic) return Error{ErrorCode::kData, "acks: wrong magic number"};
  std::vector<cache::CopyAck> acks(in.get_count(cache::CopyAck::kWireBytes));
  for (cache::CopyAck& ack : acks) {
    ack.copy = in.get<cache::CopyId>();
    ack.done = in.get<uint32_t>();
  }
  if (!in.finished()) return make_error(ErrorCode::kData, "acks: malformed message of {} bytes", bytes.size());
  return acks;
}

}  // namespace millrace::sched
