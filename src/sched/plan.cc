#include "sched/plan.h"

#include <numeric>

#include "comm/wire.h"

namespace millrace::sched {
namespace {

using comm::ByteReader;
using comm::ByteWriter;
using tensor::SamplingParams;
using tensor::TokenLogprobs;

constexpr uint32_t kPlanMagic = 0x4E414C50;    // "PLAN"
constexpr uint32_t kOutputMagic = 0x5054554F;  // "OUTP"
// Smallest encodings, which bound the counts that a hostile message may claim.
constexpr size_t kOpenBytes = 40;
constexpr size_t kSliceBytes = 25;
constexpr size_t kBiasBytes = 8;
constexpr size_t kLogprobsBytes = 16;
constexpr size_t kSliceOutputBytes = 6;

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

void put_logprobs(ByteWriter& out, const TokenLogprobs& logprobs) {
  out.put(logprobs.token);
  out.put(logprobs.logprob);
  out.put(logprobs.rank);
  out.put(static_cast<uint32_t>(logprobs.top.size()));
  for (const auto& [token, logprob] : logprobs.top) {
    out.put(token);
    out.put(logprob);
  }
}

TokenLogprobs get_logprobs(ByteReader& in) {
  TokenLogprobs logprobs;
  logprobs.token = in.get<TokenId>();
  logprobs.logprob = in.get<float>();
  logprobs.rank = in.get<int32_t>();
  logprobs.top.resize(in.get_count(kBiasBytes));
  for (auto& [token, logprob] : logprobs.top) {
    token = in.get<TokenId>();
    logprob = in.get<float>();
  }
  return logprobs;
}

void put_slice(ByteWriter& out, const PlanSlice& slice) {
  out.put(slice.slot);
  out.put(slice.prefix);
  out.put(slice.token_count);
  out.put(slice.new_page_count);
  out.put(slice.sample);
  out.put(slice.score_top);
  out.put(slice.next_token);
}

PlanSlice get_slice(ByteReader& in) {
  PlanSlice slice;
  slice.slot = in.get<SlotId>();
  slice.prefix = in.get<uint32_t>();
  slice.token_count = in.get<uint32_t>();
  slice.new_page_count = in.get<uint32_t>();
  slice.sample = in.get_bool();
  slice.score_top = in.get<int32_t>();
  slice.next_token = in.get<TokenId>();
  return slice;
}

void put_reports(ByteWriter& out, const std::vector<StageReport>& reports) {
  out.put(static_cast<uint32_t>(reports.size()));
  for (const StageReport& report : reports) {
    out.put(report.stage);
    out.put(report.plan);
    out.put(report.plan_ns);
    out.put(report.input_ns);
    out.put(report.begin_ns);
    out.put(report.end_ns);
    out.put(report.sent_bytes);
  }
}

std::vector<StageReport> get_reports(ByteReader& in) {
  std::vector<StageReport> reports(in.get_count(StageReport::kWireBytes));
  for (StageReport& report : reports) {
    report.stage = in.get<StageId>();
    report.plan = in.get<PlanId>();
    report.plan_ns = in.get<int64_t>();
    report.input_ns = in.get<int64_t>();
    report.begin_ns = in.get<int64_t>();
    report.end_ns = in.get<int64_t>();
    report.sent_bytes = in.get<uint64_t>();
  }
  return reports;
}

Result<Plan> consistent(Plan plan) {
  uint64_t token_count = 0;
  uint64_t page_count = 0;
  for (const PlanSlice& slice : plan.slices) {
    if (slice.token_count == 0) return Error{ErrorCode::kData, "plan: a slice without tokens"};
    token_count += slice.token_count;
    page_count += slice.new_page_count;
  }
  if (token_count != plan.tokens.size()) {
    return make_error(ErrorCode::kData, "plan: {} tokens, its slices want {}", plan.tokens.size(), token_count);
  }
  if (page_count != plan.new_pages.size()) {
    return make_error(ErrorCode::kData, "plan: {} new pages, its slices want {}", plan.new_pages.size(), page_count);
  }
  return plan;
}

}  // namespace

std::vector<std::byte> Plan::encode() const {
  ByteWriter out;
  out.put(kPlanMagic);
  out.put(id);
  out.put(generation);
  out.put_array(std::span(closes));
  out.put(static_cast<uint32_t>(opens.size()));
  for (const SequenceOpen& open : opens) {
    out.put(open.slot);
    out.put(open.prompt_length);
    put_sampling(out, open.sampling);
  }
  out.put(static_cast<uint32_t>(slices.size()));
  for (const PlanSlice& slice : slices) put_slice(out, slice);
  out.put_array(std::span(tokens));
  out.put_array(std::span(new_pages));
  put_reports(out, reports);
  return out.take();
}

Result<Plan> Plan::decode(std::span<const std::byte> bytes) {
  ByteReader in(bytes);
  if (in.get<uint32_t>() != kPlanMagic) return Error{ErrorCode::kData, "plan: wrong magic number"};
  Plan plan;
  plan.id = in.get<PlanId>();
  plan.generation = in.get<Generation>();
  plan.closes = in.get_array<SlotId>();
  plan.opens.resize(in.get_count(kOpenBytes));
  for (SequenceOpen& open : plan.opens) {
    open.slot = in.get<SlotId>();
    open.prompt_length = in.get<uint32_t>();
    open.sampling = get_sampling(in);
  }
  plan.slices.resize(in.get_count(kSliceBytes));
  for (PlanSlice& slice : plan.slices) slice = get_slice(in);
  plan.tokens = in.get_array<TokenId>();
  plan.new_pages = in.get_array<PageId>();
  plan.reports = get_reports(in);
  if (!in.finished()) return make_error(ErrorCode::kData, "plan: malformed message of {} bytes", bytes.size());
  return consistent(std::move(plan));
}

std::vector<std::byte> PlanOutput::encode() const {
  ByteWriter out;
  out.put(kOutputMagic);
  out.put(id);
  out.put(generation);
  out.put(static_cast<uint32_t>(slices.size()));
  for (const SliceOutput& slice : slices) {
    out.put(slice.fault);
    out.put(slice.sample.has_value());
    if (slice.sample) {
      out.put(slice.sample->token);
      put_logprobs(out, slice.sample->logprobs);
    }
    out.put(static_cast<uint32_t>(slice.scores.size()));
    for (const TokenLogprobs& score : slice.scores) put_logprobs(out, score);
  }
  put_reports(out, reports);
  return out.take();
}

Result<PlanOutput> PlanOutput::decode(std::span<const std::byte> bytes) {
  ByteReader in(bytes);
  if (in.get<uint32_t>() != kOutputMagic) return Error{ErrorCode::kData, "output: wrong magic number"};
  PlanOutput output;
  output.id = in.get<PlanId>();
  output.generation = in.get<Generation>();
  output.slices.resize(in.get_count(kSliceOutputBytes));
  for (SliceOutput& slice : output.slices) {
    const auto fault = in.get<uint8_t>();
    if (fault >= tensor::kLogitFaultCount)
      return make_error(ErrorCode::kData, "output: a fault of unknown kind {}", fault);
    slice.fault = static_cast<tensor::LogitFault>(fault);
    if (in.get_bool()) {
      slice.sample.emplace();
      slice.sample->token = in.get<TokenId>();
      slice.sample->logprobs = get_logprobs(in);
    }
    slice.scores.resize(in.get_count(kLogprobsBytes));
    for (TokenLogprobs& score : slice.scores) score = get_logprobs(in);
  }
  output.reports = get_reports(in);
  if (!in.finished()) return make_error(ErrorCode::kData, "output: malformed message of {} bytes", bytes.size());
  return output;
}

}  // namespace millrace::sched
