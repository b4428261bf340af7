#include <charconv>
#include <cstdlib>

#include "app/flag_types.h"
#include "app/launcher_env.h"
#include "app/serve_flags.h"

namespace millrace::app {
namespace {

constexpr uint16_t kDefaultClusterPort = 30100;

/// Parses HOST:PORT or [HOST]:PORT.
std::optional<comm::TcpEndpoint> parse_endpoint(const std::string& text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0) return std::nullopt;
  std::string host = text.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  int port = 0;
  const auto [end, failure] = std::from_chars(text.data() + colon + 1, text.data() + text.size(), port);
  if (failure != std::errc() || end != text.data() + text.size() || port < 1 || port > 65535) return std::nullopt;
  return comm::TcpEndpoint{host, static_cast<uint16_t>(port)};
}

CLI::Validator layer_partition() {
  const auto check = [](std::string& text) -> std::string {
    const auto partition = model::parse_layer_partition(text);
    return partition.has_error() ? partition.error().message : "";
  };
  return {check, ""};
}

/// Returns which flags of rings in several processes contradict each other, or nothing.
std::string placement_contradiction(const ServeFlags& flags) {
  const RingPlacement& rings = flags.cluster.rings;
  const int32_t size = flags.engine.dp_size;
  const bool is_divided = rings.number || (rings.local > 0 && rings.local < size);
  if (rings.number && flags.engine.enable_ep) {
    if (size == 1) {
      return fmt::format(
          "--dp-rank {} with --enable-ep: wanted the front's --dp-size, among whose rings the experts are "
          "divided",
          *rings.number);
    }
    if (*rings.number >= size) return fmt::format("--dp-rank {}: wanted below --dp-size {}", *rings.number, size);
  } else if (rings.number && size > 1) {
    return fmt::format(
        "--dp-rank {} with --dp-size {}: a process with --dp-rank has one ring; --dp-size is for "
        "--enable-ep",
        *rings.number, size);
  }
  if (rings.number && rings.local > 0) {
    return fmt::format("--dp-rank {} with --dp-size-local {}: only the front, which has no --dp-rank, has local rings",
                       *rings.number, rings.local);
  }
  if (rings.local > size) return fmt::format("--dp-size-local {}: wanted at most --dp-size {}", rings.local, size);
  if (is_divided && rings.front.host.empty()) return "--dp-rank and --dp-size-local need --dp-address HOST:PORT";
  if (!is_divided && !rings.front.host.empty()) {
    return "--dp-address without rings in other processes: wanted --dp-rank, or --dp-size-local below --dp-size";
  }
  return {};
}

}  // namespace

void add_ring_flags(CLI::App& serve, ServeFlags& flags, UnresolvedFlags& unresolved) {
  EngineOptions& engine = flags.engine;
  serve.option_defaults()->group("Pipeline and nodes");
  add_number(serve, "--pp-size", engine.pp_size, {1, 1024}, "Sets the number of stages.");
  serve
      .add_option_function<std::string>(
          "--tp-size,--tensor-parallel-size",
          [&engine](const std::string& text) { engine.tp_size = text == "auto" ? 0 : std::stoi(text); },
          "Sets the number of ranks of each stage, which share its layers: 1, 2, 4 or 8, or auto for one per NUMA "
          "node, one on GPUs.")
      ->check(CLI::IsMember({"1", "2", "4", "8", "auto"}))
      ->type_name("N")
      ->default_str("1");
  add_name(
      serve, "--tp-reduce-dtype", {"f32", "bf16"},
      [&engine](const std::string& name) { engine.stage.reduce_dtype = *parse_enum<tensor::DType>(name); },
      "Selects the dtype in which sums travel between ranks of a stage on several nodes: f32, with the tokens of one "
      "rank, or bf16, with half the bytes.")
      ->default_str("f32");
  serve
      .add_option_function<std::string>(
          "--pp-layer-partition",
          [&engine](const std::string& text) { engine.layer_partition = model::parse_layer_partition(text).value(); },
          "Divides the layers over the stages: even (the remainder to later stages), auto, auto:prefill or auto:decode "
          "(by cost measured at start on node 0, for requests of 256 tokens in and 128 out, for prompts, or for "
          "decode), "
          "or a list as 15,15,15,16.")
      ->check(layer_partition())
      ->type_name("HOW")
      ->default_str(model::to_string(engine.layer_partition));
  add_number(serve, "--pp-async-batch-depth", engine.async_batch_depth, {0, 64},
             "Keeps this many micro-batches in flight beyond one per stage, which hides slow links.");
  add_number(serve, "--dp-size", engine.dp_size, {1, 64},
             "Sets the number of rings: copies of the whole pipeline that share the requests.");
  add_number(serve, "--dp-size-local,--data-parallel-size-local", flags.cluster.rings.local, {0, 64},
             "Sets how many of the rings run in this process; the others join at --dp-address. 0 means all.");
  add_number(serve, "--dp-rank", unresolved.dp_rank, {0, 63},
             "Makes this process the ring of this number of a front at --dp-address, without HTTP.")
      ->default_str("none");
  serve
      .add_option("--dp-address", unresolved.dp_address,
                  "Sets the address, HOST:PORT, where the front listens for rings in other processes.")
      ->type_name("ADDRESS");
  serve.add_flag(
      "--enable-ep,--enable-expert-parallel", engine.enable_ep,
      "Divides the experts of a mixture-of-experts model over the ranks of all rings instead of copying them to "
      "each ring.");
  add_number(serve, "--dp-step-lookahead", engine.step_lookahead, {1, 65536},
             "Sets how many steps rings with --enable-ep are announced ahead of a ring with work.");
  add_choice(serve, "--load-balance-method", engine.load_balance,
             "Selects how a ring is chosen for a request: by its cached prefix as long as loads are in proportion, in "
             "turn, or by the fewest requests.");
  add_number(serve, "--nnodes", flags.cluster.node_count, {1, 1024},
             "Shares the stages, or their ranks, among this many nodes (hosts or processes).");
  add_number(serve, "--node-rank", flags.cluster.node_rank, {0, 1023},
             "Sets this node's number; node 0 hosts the head and serves HTTP.");
  serve
      .add_option("--dist-init-addr", unresolved.dist_init_addr,
                  "Sets the address, HOST:PORT, where node 0 listens for the other nodes.")
      ->type_name("ADDRESS")
      ->default_str("from torchrun, Slurm, Open MPI or LeaderWorkerSet");
}

std::string resolve_cluster(const CLI::App& serve, const std::string& dist_init_addr, ClusterOptions& cluster_options) {
  if (serve.count("--nnodes") == 0 && serve.count("--node-rank") == 0) {
    if (const auto found = find_launcher(std::getenv)) {
      cluster_options.node_count = found->node_count;
      cluster_options.node_rank = found->node_rank;
      if (found->head_host)
        cluster_options.address = {*found->head_host, found->head_port.value_or(kDefaultClusterPort)};
    }
  }
  if (!dist_init_addr.empty()) {
    const auto address = parse_endpoint(dist_init_addr);
    if (!address) return fmt::format("--dist-init-addr: '{}' is not HOST:PORT", dist_init_addr);
    cluster_options.address = *address;
  }
  if (cluster_options.node_rank >= cluster_options.node_count) {
    return fmt::format("--node-rank {}: wanted below --nnodes {}", cluster_options.node_rank,
                       cluster_options.node_count);
  }
  if (cluster_options.node_count > 1 && cluster_options.address.host.empty())
    return "--nnodes above 1 needs --dist-init-addr HOST:PORT";
  return {};
}

std::string resolve_rings(const UnresolvedFlags& unresolved, ServeFlags& flags) {
  RingPlacement& rings = flags.cluster.rings;
  if (unresolved.dp_rank >= 0) rings.number = unresolved.dp_rank;
  if (unresolved.dp_address.empty()) return {};
  const auto address = parse_endpoint(unresolved.dp_address);
  if (!address) return fmt::format("--dp-address: '{}' is not HOST:PORT", unresolved.dp_address);
  rings.front = *address;
  return {};
}

std::string ring_contradiction(const ServeFlags& flags) {
  if (std::string wrong = placement_contradiction(flags); !wrong.empty()) return wrong;
  if (flags.engine.dp_size == 1 || flags.cluster.node_count == 1) return {};
  const RingPlacement& rings = flags.cluster.rings;
  const int32_t local = rings.number ? 1 : rings.local > 0 ? rings.local : flags.engine.dp_size;
  if (local == 1) return {};
  return fmt::format(
      "--nnodes {} with --dp-size {}, whose rings are in this process: wanted --dp-size-local 1, or --nnodes 1",
      flags.cluster.node_count, local);
}

}  // namespace millrace::app
