#include "trainer/runtime/speed_check.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <set>

#include <fmt/format.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <c10/core/CachingDeviceAllocator.h>

#include "base/clock.h"
#include "base/collective.h"
#include "base/device/streams.h"
#include "base/log.h"
#include "base/pack.h"
#include "base/process.h"

namespace hyperion::trainer {
namespace {

constexpr double kSlowCard = 0.9;    // of the median
constexpr double kSlowNetwork = 10;  // GB/s
constexpr double kSlowBesideNode = 1. / 6;
constexpr size_t kMaxNamed = 8;

// Returns the seconds per run of `work`, after a warm-up of half the time.
double seconds_per_run(at::Device device, double seconds, const std::function<void()>& work) {
  const DeviceStream stream = DeviceStream::current(device);
  const auto run_for = [&](double limit) {
    const auto begin = std::chrono::steady_clock::now();
    int runs = 0;
    do {
      work();
      stream.synchronize();
      ++runs;
    } while (seconds_since(begin) < limit);
    return seconds_since(begin) / runs;
  };
  run_for(seconds / 2);
  return run_for(seconds / 2);
}

CardSpeed measure_card(at::Device device, double seconds) {
  constexpr int64_t kSize = 8192;
  const auto options = at::TensorOptions(at::kBFloat16).device(device);
  const at::Tensor a = at::zeros({kSize, kSize}, options), b = at::zeros({kSize, kSize}, options);
  at::Tensor out = at::empty({kSize, kSize}, options);
  CardSpeed speed;
  speed.tflops =
      2e-12 * kSize * kSize * kSize / seconds_per_run(device, seconds / 2, [&] { at::mm_out(out, a, b); });
  speed.copy_gbs =
      2e-9 * static_cast<double>(a.nbytes()) / seconds_per_run(device, seconds / 2, [&] { out.copy_(a); });
  return speed;
}

GroupSpeed measure_group(parallel::Communicator& group, at::Device device) {
  constexpr int64_t kBytes = 64 << 20;
  const int64_t own = kBytes / 4 / group.size(), all = own * group.size();
  const auto options = at::TensorOptions(at::kFloat).device(device);
  const at::Tensor part = at::zeros({own}, options), whole = at::zeros({all}, options);
  const double sent = 4e-9 * static_cast<double>(all - own);
  return {.group = group.name(),
          .ranks = group.size(),
          .gather_gbs =
              sent / seconds_per_run(device, 0, [&] { group.start_all_gather_into(whole, part).wait(); }),
          .sum_gbs =
              sent / seconds_per_run(device, 0, [&] { group.start_reduce_scatter_sum(part, whole).wait(); })};
}

// Each rank but the last sends to the next one, as pipeline stages send activations. A connection from the
// last to the first would take memory, and few schedules need it.
GroupSpeed measure_neighbours(parallel::Communicator& stages, at::Device device) {
  constexpr int64_t kBytes = 64 << 20;
  const at::Tensor sent = at::zeros({kBytes}, at::TensorOptions(at::kByte).device(device)),
                   received = at::empty_like(sent);
  std::vector<Transfer> transfers;
  if (stages.rank() + 1 < stages.size())
    transfers.push_back({Transfer::Kind::kSend, sent, stages.rank() + 1});
  if (stages.rank() > 0) transfers.push_back({Transfer::Kind::kReceive, received, stages.rank() - 1});
  const double speed = 1e-9 * static_cast<double>(kBytes) /
                       seconds_per_run(device, 0, [&] { stages.start_transfers(transfers).wait(); });
  return {.group = stages.name(), .ranks = stages.size(), .gather_gbs = speed, .sum_gbs = speed};
}

double median(std::vector<double> values) {
  std::ranges::nth_element(values, values.begin() + static_cast<ptrdiff_t>(values.size() / 2));
  return values[values.size() / 2];
}

}  // namespace

std::vector<std::string> slow_cards(const std::vector<CardSpeed>& cards) {
  std::vector<std::string> found;
  for (const auto& [what, unit, member] : {std::tuple("multiplies", "TFLOP/s", &CardSpeed::tflops),
                                           std::tuple("copies", "GB/s", &CardSpeed::copy_gbs)}) {
    std::vector<double> values;
    for (const CardSpeed& card : cards) values.push_back(card.*member);
    const double usual = median(values);
    for (const CardSpeed& card : cards)
      if (card.*member < kSlowCard * usual && found.size() < kMaxNamed)
        found.push_back(
            fmt::format("the GPU of rank {} on {} {} at {:.0f} {}, {:.0f} % of the median of {:.0f}: all "
                        "ranks wait for it in every "
                        "step; see its clocks and throttle reasons (nvidia-smi -q -d CLOCK,PERFORMANCE), and "
                        "leave the host out "
                        "(--exclude) if it stays so",
                        card.rank, card.host, what, card.*member, unit, 100 * card.*member / usual, usual));
  }
  return found;
}

std::vector<std::string> slow_groups(const std::vector<GroupSpeed>& groups) {
  double in_node = 0;
  for (const GroupSpeed& group : groups)
    if (group.on_host == group.ranks) in_node = std::max(in_node, group.gather_gbs);
  std::vector<std::string> found;
  for (const GroupSpeed& group : groups) {
    const double speed = std::min(group.gather_gbs, group.sum_gbs);
    const double least = group.on_host > 1 ? std::max(kSlowNetwork, kSlowBesideNode * in_node) : kSlowNetwork;
    if (group.on_host == group.ranks || speed >= least) continue;
    found.push_back(
        fmt::format("group {} of {} ranks over several hosts exchanges at {:.1f} GB/s per rank{}: NCCL may "
                    "talk plain TCP. "
                    "NCCL_DEBUG=INFO says what it uses: \"NET/Socket\" is TCP; look for the InfiniBand verbs "
                    "(libibverbs) in the "
                    "container, NCCL's OFI plugin on EFA, and NCCL_IB_HCA (docs/cluster.md, Networks)",
                    group.group, group.ranks, speed,
                    in_node > 0 ? fmt::format(", inside a host at {:.0f}", in_node) : ""));
  }
  return found;
}

int ranks_on_host(const std::vector<std::string>& hosts, const std::vector<int>& ranks, int own) {
  return static_cast<int>(std::ranges::count(ranks, hosts.at(own), [&](int rank) { return hosts.at(rank); }));
}

void check_speed(const parallel::ProcessGroups& groups, const parallel::Mesh& mesh,
                 const parallel::Environment& environment, at::Device device, double seconds) {
  const at::NoGradGuard no_grad;
  CardSpeed own = measure_card(device, seconds);
  own.host = host_name();
  own.rank = environment.rank;
  const std::vector<std::string> cards = groups.host().gather(pack(own));  // of rank 0
  std::vector<GroupSpeed> speeds;
  std::string line = fmt::format("GPU: {:.0f} TFLOP/s in bfloat16 products, {:.0f} GB/s in copies",
                                 own.tflops, own.copy_gbs);
  std::set<const parallel::Communicator*> measured;
  // The node's number is part of the name, because containers may share a host name.
  const auto hosts = combine_on_rank_0(groups.host(), fmt::format("{} {}", own.host, environment.node),
                                       [](std::vector<std::string> of_ranks) { return of_ranks; });
  std::vector<parallel::MeshDim> dims = {parallel::MeshDim::kTp, parallel::MeshDim::kCp,
                                         parallel::MeshDim::kFsdp, parallel::MeshDim::kDpReplicate,
                                         parallel::MeshDim::kPp};
  if (!groups.expert_groups().empty())
    dims.insert(dims.end(), {parallel::MeshDim::kEfsdp, parallel::MeshDim::kEp});
  for (const parallel::MeshDim dim : dims) {
    parallel::Communicator& group = groups.get(dim);
    if (group.size() == 1 || !measured.insert(&group).second) continue;
    const bool stages = dim == parallel::MeshDim::kPp;
    GroupSpeed speed = stages ? measure_neighbours(group, device) : measure_group(group, device);
    speed.on_host = ranks_on_host(hosts, mesh.group(environment.rank, dim), environment.rank);
    line += fmt::format(
        "; {}: {}{}", speed.group,
        stages ? fmt::format("transfers between stages at {:.1f} GB/s", speed.gather_gbs)
               : fmt::format("gathers at {:.1f} GB/s, sums at {:.1f}", speed.gather_gbs, speed.sum_gbs),
        speed.on_host < speed.ranks
            ? fmt::format(" ({} of {} ranks on this host)", speed.on_host, speed.ranks)
            : "");
    speeds.push_back(std::move(speed));
  }
  c10::getDeviceAllocator(device.type())->emptyCache();  // the model's memory is what the step line reports
  log_info("{}", line);
  for (const std::string& warning : slow_groups(speeds)) log_warning("{}", warning);
  if (environment.rank == 0)
    for (const std::string& warning : slow_cards(unpack_each<CardSpeed>(cards))) log_warning("{}", warning);
}

}  // namespace hyperion::trainer
