#include "text/tokenizer/pre_tokenizer.h"

#include <algorithm>

#include "base/utf8.h"
#include "text/tokenizer/normalizer.h"

namespace millrace::text {
namespace {

struct Span {
  size_t begin;
  size_t end;
  bool is_match;
};

/// The whole piece as an alternation of gaps and matches, in order; spans may be empty.
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

/// Whether two neighbours become one piece.
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

}  // namespace

void PreTokenizer::split(std::string_view piece, bool at_text_start, RegexScratch& scratch, const Sink& sink) const {
  run_stage(0, piece, Run{sink, scratch, piece.data() + piece.size(), at_text_start});
}

void PreTokenizer::run_stage(size_t stage, std::string_view piece, const Run& run) const {
  if (piece.empty()) return;
  if (stage == stages_.size()) return run.sink(piece, run.readable_end);
  if (const auto* split = std::get_if<Split>(&stages_[stage])) return run_split(*split, stage, piece, run);
  if (const auto* metaspace = std::get_if<Metaspace>(&stages_[stage])) {
    return run_metaspace(*metaspace, stage, piece, run);
  }
  if (piece.front() == ' ') return run_stage(stage + 1, piece, run);
  const std::string prefixed = " " + std::string(piece);
  run_stage(stage + 1, prefixed, Run{run.sink, run.scratch, prefixed.data() + prefixed.size(), run.at_text_start});
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
