#include "trainer/runtime/speed_check.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <optional>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <c10/core/CachingDeviceAllocator.h>

#include "base/clock.h"
#include "base/collective.h"
#include "base/device/device.h"
#include "base/device/streams.h"
#include "base/log.h"
#include "base/pack.h"
#include "base/process.h"
#include "trainer/metrics/gpu_sampler.h"

namespace hyperion::trainer {
namespace {

constexpr double kSlowCard = 0.9;    // of the median
constexpr double kSlowNetwork = 10;  // GB/s
constexpr double kSlowBesideNode = 1. / 6;
constexpr size_t kMaxNamed = 8;

// Runs `work` for `seconds`, at least once, and returns the seconds per run. The host waits once in kBatch
// seconds, so that the card has no time to rest.
double run_for(at::Device device, double seconds, const std::function<void()>& work) {
  constexpr double kBatch = 0.05;
  const DeviceStream stream = DeviceStream::current(device);
  const auto begin = std::chrono::steady_clock::now();
  double spent = 0;
  int64_t runs = 0, batch = 1;
  do {
    for (int64_t i = 0; i < batch; ++i) work();
    stream.synchronize();
    runs += batch;
    spent = seconds_since(begin);
    const double left = std::min(kBatch, seconds - spent), each = spent / static_cast<double>(runs);
    batch = std::clamp<int64_t>(static_cast<int64_t>(left / each), 1, 1000);
  } while (spent < seconds);
  return spent / static_cast<double>(runs);
}

// The seconds per run after a first one, which connects ranks and loads kernels.
double seconds_of_second_run(at::Device device, const std::function<void()>& work) {
  run_for(device, 0, work);
  return run_for(device, 0, work);
}

void add_clocks(const std::optional<metrics::GpuCounters>& counters, CardSpeed& speed) {
  if (!counters) return;
  std::vector<std::string> clocks, reasons;
  if (counters->sm_mhz) clocks.push_back(fmt::format("SM at {:.0f} MHz", *counters->sm_mhz));
  if (counters->watts) clocks.push_back(fmt::format("{:.0f} W", *counters->watts));
  if (counters->temperature) clocks.push_back(fmt::format("{:.0f} C", *counters->temperature));
  for (const metrics::ThrottleReason& reason : metrics::kThrottleReasons)
    if ((counters->throttled & reason.bits) != 0) reasons.emplace_back(reason.name);
  speed.clocks = fmt::format("{}", fmt::join(clocks, ", "));
  speed.throttled = fmt::format("{}", fmt::join(reasons, ", "));
}

CardSpeed measure_card(at::Device device, double seconds) {
  constexpr int64_t kSize = 8192;
  constexpr std::chrono::milliseconds kPeriod{100};
  metrics::GpuSampler sampler(pci_address(device.index()), kPeriod, /*says_why_not=*/false);
  const at::Tensor a = normal_values(kSize, device, 1), b = normal_values(kSize, device, 2);
  at::Tensor out = at::empty_like(a);
  CardSpeed speed;
  const auto multiply = [&] { at::mm_out(out, a, b); };
  const auto copy = [&] { out.copy_(a); };
  run_for(device, seconds / 4, multiply);
  sampler.take();  // the clocks of a card that was idle
  speed.tflops = 2e-12 * kSize * kSize * kSize / run_for(device, seconds / 2, multiply);
  add_clocks(sampler.take(), speed);
  run_for(device, seconds / 16, copy);
  speed.copy_gbs = 2e-9 * static_cast<double>(a.nbytes()) / run_for(device, seconds * 3 / 16, copy);
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
              sent / seconds_of_second_run(device, [&] { group.start_all_gather_into(whole, part).wait(); }),
          .sum_gbs = sent / seconds_of_second_run(
                                device, [&] { group.start_reduce_scatter_sum(part, whole).wait(); })};
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
                       seconds_of_second_run(device, [&] { stages.start_transfers(transfers).wait(); });
  return {.group = stages.name(), .ranks = stages.size(), .gather_gbs = speed, .sum_gbs = speed};
}

double median(std::vector<double> values) {
  std::ranges::nth_element(values, values.begin() + static_cast<ptrdiff_t>(values.size() / 2));
  return values[values.size() / 2];
}

// ", throttled (thermal) with SM at 1200 MHz, 400 W, 88 C"; "" without NVML.
std::string describe_clocks(const CardSpeed& card) {
  if (card.throttled.empty()) return card.clocks.empty() ? "" : ", with " + card.clocks;
  return fmt::format(", throttled ({}){}{}", card.throttled, card.clocks.empty() ? "" : " with ",
                     card.clocks);
}

}  // namespace

at::Tensor normal_values(int64_t size, at::Device device, uint64_t seed) {
  constexpr int64_t kTile = 512;  // the host draws that many rows and columns, which are repeated
  const at::Generator generator = at::detail::createCPUGenerator(seed);
  const at::Tensor tile = at::randn({kTile, kTile}, generator, at::TensorOptions(at::kFloat));
  const int64_t times = (size + kTile - 1) / kTile;
  return tile.to(device, at::kBFloat16).repeat({times, times}).narrow(0, 0, size).narrow(1, 0, size);
}

std::vector<std::string> slow_cards(const std::vector<CardSpeed>& cards) {
  std::vector<std::string> found;
  std::set<int> named;
  for (const auto& [what, unit, member] : {std::tuple("multiplies", "TFLOP/s", &CardSpeed::tflops),
                                           std::tuple("copies", "GB/s", &CardSpeed::copy_gbs)}) {
    std::vector<double> values;
    for (const CardSpeed& card : cards) values.push_back(card.*member);
    const double usual = median(values);
    for (const CardSpeed& card : cards)
      if (card.*member < kSlowCard * usual && found.size() < kMaxNamed) {
        named.insert(card.rank);
        found.push_back(
            fmt::format("the GPU of rank {} on {} {} at {:.0f} {}, {:.0f} % of the median of {:.0f}{}: all "
                        "ranks wait for it in every step; see its clocks and throttle reasons (nvidia-smi -q "
                        "-d CLOCK,PERFORMANCE), and leave the host out (--exclude) if it stays so",
                        card.rank, card.host, what, card.*member, unit, 100 * card.*member / usual, usual,
                        describe_clocks(card)));
      }
  }
  for (const CardSpeed& card : cards)
    if (!card.throttled.empty() && !named.contains(card.rank) && found.size() < kMaxNamed)
      found.push_back(fmt::format(
          "the GPU of rank {} on {} multiplies at {:.0f} TFLOP/s{}: look at its cooling and power "
          "supply, and leave the host out (--exclude) if it stays so",
          card.rank, card.host, card.tflops, describe_clocks(card)));
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
                    "talk plain TCP. NCCL_DEBUG=INFO says what it uses: \"NET/Socket\" is TCP; look for the "
                    "InfiniBand verbs (libibverbs) in the container, NCCL's OFI plugin on EFA, and "
                    "NCCL_IB_HCA (docs/cluster.md, Networks)",
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
  std::string line = fmt::format("GPU: {:.0f} TFLOP/s in bfloat16 products{}, {:.0f} GB/s in copies",
                                 own.tflops, describe_clocks(own), own.copy_gbs);
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
