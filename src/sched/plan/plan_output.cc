#include "sched/plan/plan_output.h"

#include "comm/wire.h"
#include "sched/plan/stage_report_wire.h"

namespace millrace::sched {
namespace {

using comm::ByteReader;
using comm::ByteWriter;
using tensor::TokenLogprobs;

constexpr uint32_t kOutputMagic = 0x5054554F;  // "OUTP"
// Sizes of the smallest encodings, which bound the counts that a hostile message may claim.
constexpr size_t kAlternativeBytes = 8;
constexpr size_t kLogprobsBytes = 16;
constexpr size_t kSampleBytes = 20;
constexpr size_t kSliceOutputBytes = 13;

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
  logprobs.top.resize(in.get_count(kAlternativeBytes));
  for (auto& [token, logprob] : logprobs.top) {
    token = in.get<TokenId>();
    logprob = in.get<float>();
  }
  return logprobs;
}

}  // namespace

std::vector<std::byte> PlanOutput::encode() const {
  ByteWriter out;
  out.put(kOutputMagic);
  out.put(id);
  out.put(epoch);
  out.put(static_cast<uint32_t>(slices.size()));
  for (const SliceOutput& slice : slices) {
    out.put(slice.fault);
    out.put(static_cast<uint32_t>(slice.samples.size()));
    for (const tensor::SampleResult& sample : slice.samples) {
      out.put(sample.token);
      put_logprobs(out, sample.logprobs);
    }
    out.put(static_cast<uint32_t>(slice.scores.size()));
    for (const TokenLogprobs& score : slice.scores) put_logprobs(out, score);
    out.put_array(std::span(slice.pooled));
  }
  put_reports(out, reports);
  return out.take();
}

Result<PlanOutput> PlanOutput::decode(std::span<const std::byte> bytes) {
  ByteReader in(bytes);
  if (in.get<uint32_t>() != kOutputMagic) return Error{ErrorCode::kData, "output: wrong magic number"};
  PlanOutput output;
  output.id = in.get<PlanId>();
  output.epoch = in.get<RingEpoch>();
  output.slices.resize(in.get_count(kSliceOutputBytes));
  for (SliceOutput& slice : output.slices) {
    const auto fault = in.get<uint8_t>();
    if (fault >= tensor::kLogitFaultCount)
      return make_error(ErrorCode::kData, "output: a fault of unknown kind {}", fault);
    slice.fault = static_cast<tensor::LogitFault>(fault);
    slice.samples.resize(in.get_count(kSampleBytes));
    for (tensor::SampleResult& sample : slice.samples) {
      sample.token = in.get<TokenId>();
      sample.logprobs = get_logprobs(in);
    }
    slice.scores.resize(in.get_count(kLogprobsBytes));
    for (TokenLogprobs& score : slice.scores) score = get_logprobs(in);
    slice.pooled = in.get_array<float>();
  }
  output.reports = get_reports(in);
  if (!in.finished()) return make_error(ErrorCode::kData, "output: malformed message of {} bytes", bytes.size());
  return output;
}

}  // namespace millrace::sched
