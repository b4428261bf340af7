#include "app/flag_types.h"
#include "app/serve_flags.h"

namespace millrace::app {
namespace {

constexpr NumberRange kTimeLimit{0, 1e6};

void add_prefill_flags(CLI::App& serve, sched::SchedulerOptions& scheduler) {
  add_number(serve, "--chunked-prefill-size", scheduler.chunked_prefill_size, {1, 1 << 20},
             "Limits the prompt tokens per micro-batch.");
  add_choice(serve, "--chunking", scheduler.chunking,
             "Sets how prompts are cut into chunks: fixed (by tokens), balanced (by predicted time), published (by the "
             "algorithm that SGLang published).");
  serve.add_flag_callback(
      "--enable-dynamic-chunking", [&scheduler] { scheduler.chunking = sched::Chunking::kBalanced; },
      "Is the same as --chunking balanced; this is not SGLang's algorithm of that name, which is --chunking "
      "published.");
  add_number(serve, "--dynamic-chunking-smoothing", scheduler.chunk_smoothing, {0, 1},
             "Sets how far a chunk follows the computed length; 1: entirely.");
}

void add_draft_flags(CLI::App& serve, EngineOptions& engine) {
  add_number(serve, "--speculative-num-draft-tokens", engine.head.scheduler.draft_tokens, {0, 63},
             "Limits the drafts per decode step of a sequence, from any source; 0: no drafts.");
  const auto set_algorithm = [&engine](std::string name) {
    engine.draft_algorithm = *parse_enum<DraftAlgorithm>(CLI::detail::to_lower(std::move(name)));
  };
  serve
      .add_option_function<std::string>(
          "--speculative-algorithm", set_algorithm,
          "Adds a source of drafts, which never changes outputs: none, or ngram (the sequence's own history).")
      ->check(CLI::IsMember(names_with<DraftAlgorithm>(), CLI::ignore_case).description(""))
      ->type_name("NAME")
      ->default_str(std::string(enum_name(engine.draft_algorithm)));
}

}  // namespace

void add_scheduler_flags(CLI::App& serve, ServeFlags& flags) {
  EngineOptions& engine = flags.engine;
  serve.option_defaults()->group("Scheduling");
  add_prefill_flags(serve, engine.head.scheduler);
  add_choice(serve, "--schedule-policy", engine.head.scheduler.policy,
             "Orders the queue: fcfs (by arrival), lpm (longest cached prefix first), priority, shortest.");
  serve.add_flag("--schedule-low-priority-values-first", flags.server.low_priority_first,
                 "Lets smaller values go first with --schedule-policy priority, as vLLM does.");
  add_number(serve, "--max-running-requests", engine.stage.max_running, {1, 65536},
             "Limits the requests that run at once.");
  add_number(serve, "--max-queued-requests", engine.head.max_queued, {1, 1 << 20},
             "Limits the requests that wait for a slot or pages; further ones get 429.");
  add_seconds(serve, "--queue-timeout", engine.head.queue_timeout, kTimeLimit,
              "Ends a request with an error when it has waited this long; 0: no limit.");
  add_seconds(serve, "--run-timeout", engine.head.run_timeout, kTimeLimit,
              "Ends a request with an error when it has run this long; 0: no limit.");
  add_draft_flags(serve, engine);
}

std::string scheduler_contradiction(const ServeFlags& flags) {
  if (flags.server.low_priority_first && flags.engine.head.scheduler.policy != sched::QueuePolicy::kPriority) {
    return "--schedule-low-priority-values-first needs --schedule-policy priority";
  }
  return {};
}

}  // namespace millrace::app
