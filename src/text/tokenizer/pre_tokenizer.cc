#include "text/tokenizer/pre_tokenizer.h"

#include <algorithm>

#include "base/utf8.h"
#include "text/tokenizer/byte_level.h"
#include "text/tokenizer/normalizer.h"
#include "text/unicode_properties.h"

namespace millrace::text {
namespace {

struct Span {
  size_t begin;
  size_t end;
  bool is_match;
};

/// Returns the whole piece as an alternation of gaps and matches, in order; spans may be empty.
std::vector<Span> find_spans(const PreTokenizer::Split& split, std::string_view piece, RegexScratch& scratch) {
  std::vector<Span> spans;
  size_t done = 0;
  size_t from = 0;
  while (from <= piece.size()) {
    const auto match = split.pattern.find(piece, from, scratch);
    if (!match) break;
    const bool empty = match->begin == match->end;
    if (!(empty && match->begin == done && done > 0)) {
      if (match->begin > done) spans.push_back({done, match->begin, split.invert});
      spans.push_back({match->begin, match->end, !split.invert});
      done = match->end;
    }
    from = match->end;
    if (empty) from += from < piece.size() ? decode_utf8(piece.substr(from)).length : 1;
  }
  if (done < piece.size()) spans.push_back({done, piece.size(), split.invert});
  return spans;
}

/// Returns whether two neighbours become one piece.
bool joins(SplitBehavior behavior, const Span& before, const Span& after) {
  switch (behavior) {
    case SplitBehavior::kContiguous: return before.is_match == after.is_match;
    case SplitBehavior::kMergedWithPrevious: return !before.is_match && after.is_match;
    case SplitBehavior::kMergedWithNext: return before.is_match && !after.is_match;
    case SplitBehavior::kRemoved:
    case SplitBehavior::kIsolated: return false;
  }
  return false;
}

/// Returns where the script changes, and the end. What precedes the first character with a script is dropped.
std::vector<size_t> script_cuts(std::string_view piece) {
  std::vector<size_t> cuts;
  uint32_t current = 0;
  for (size_t at = 0; at < piece.size();) {
    const DecodedUtf8 step = decode_utf8(piece.substr(at));
    const uint32_t own = script_class(step.code_point);
    if (own != 0 && own != current) {
      cuts.push_back(at);
      current = own;
    }
    at += step.length;
  }
  cuts.push_back(piece.size());
  return cuts;
}

std::vector<size_t> fixed_cuts(std::string_view piece, size_t length) {
  std::vector<size_t> cuts = {0};
  while (cuts.back() < piece.size()) {
    cuts.push_back(cuts.back() + code_point_offset(piece.substr(cuts.back()), length));
  }
  return cuts;
}

}  // namespace

void PreTokenizer::split(std::string_view piece, bool at_text_start, RegexScratch& scratch, const Sink& sink) const {
  run_stage(0, piece, Run{sink, scratch, piece.data() + piece.size(), at_text_start});
}

void PreTokenizer::run_stage(size_t stage, std::string_view piece, const Run& run) const {
  if (piece.empty()) return;
  if (stage == stages_.size()) return run.sink(piece, run.readable_end);
  const Stage& current = stages_[stage];
  if (const auto* split = std::get_if<Split>(&current)) return run_split(*split, stage, piece, run);
  if (const auto* metaspace = std::get_if<Metaspace>(&current)) return run_metaspace(*metaspace, stage, piece, run);
  if (std::holds_alternative<ByteLevelText>(current)) return run_copy(byte_level_text(piece), stage + 1, run);
  if (std::holds_alternative<Scripts>(current)) return run_parts(script_cuts(piece), stage, piece, run);
  if (const auto* fixed = std::get_if<FixedLength>(&current)) {
    return run_parts(fixed_cuts(piece, fixed->length), stage, piece, run);
  }
  if (piece.front() == ' ') return run_stage(stage + 1, piece, run);
  run_copy(" " + std::string(piece), stage + 1, run);
}

void PreTokenizer::run_copy(const std::string& text, size_t stage, const Run& run) const {
  run_stage(stage, text, Run{run.sink, run.scratch, text.data() + text.size(), run.at_text_start});
}

void PreTokenizer::run_parts(std::span<const size_t> cuts, size_t stage, std::string_view piece, const Run& run) const {
  Run inner = run;
  for (size_t i = 0; i + 1 < cuts.size(); ++i) {
    inner.at_text_start = run.at_text_start && cuts[i] == 0;
    run_stage(stage + 1, piece.substr(cuts[i], cuts[i + 1] - cuts[i]), inner);
  }
}

void PreTokenizer::run_split(const Split& split, size_t stage, std::string_view piece, const Run& run) const {
  Run inner = run;
  const auto emit = [&](size_t begin, size_t end) {
    inner.at_text_start = run.at_text_start && begin == 0;
    run_stage(stage + 1, piece.substr(begin, end - begin), inner);
  };
  if (split.scanner) {
    for (size_t begin = 0; begin < piece.size();) {
      const size_t end = split.scanner->next(piece, begin);
      emit(begin, end);
      begin = end;
    }
    return;
  }
  std::vector<Span> spans = find_spans(split, piece, run.scratch);
  if (split.behavior == SplitBehavior::kRemoved) std::erase_if(spans, [](const Span& span) { return span.is_match; });
  for (size_t i = 0; i < spans.size();) {
    const size_t begin = spans[i].begin;
    for (++i; i < spans.size() && joins(split.behavior, spans[i - 1], spans[i]);) ++i;
    emit(begin, spans[i - 1].end);
  }
}

void PreTokenizer::run_metaspace(const Metaspace& metaspace, size_t stage, std::string_view piece,
                                 const Run& run) const {
  std::string text = replace_all(piece, " ", metaspace.replacement);
  const bool prepends = metaspace.prepend == Metaspace::Prepend::kAlways ||
                        (metaspace.prepend == Metaspace::Prepend::kFirst && run.at_text_start);
  if (prepends && !text.starts_with(metaspace.replacement)) text.insert(0, metaspace.replacement);
  Run inner = run;
  inner.readable_end = text.data() + text.size();
  if (!metaspace.split) return run_stage(stage + 1, text, inner);
  const std::string_view view = text;
  size_t begin = 0;
  while (begin < view.size()) {
    const size_t end = std::min(view.find(metaspace.replacement, begin + 1), view.size());
    inner.at_text_start = run.at_text_start && begin == 0;
    run_stage(stage + 1, view.substr(begin, end - begin), inner);
    begin = end;
  }
}

}  // namespace millrace::text
