#include "parallel/comm/process_group.h"

#include <algorithm>
#include <exception>

#include <fmt/format.h>
#include <unistd.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "base/device/device_library.h"
#include "base/device/error_text.h"
#include "base/error.h"
#include "base/gpu_fault.h"
#include "base/log.h"
#include "base/rank_list.h"
#include "base/resources.h"
#include "parallel/comm/backend_communicator.h"
#include "parallel/comm/host_tree.h"
#include "parallel/comm/nccl_job.h"
#include "parallel/comm/shared_memory_communicator.h"
#include "parallel/job/network.h"
#include "parallel/job/phase.h"
#include "parallel/job/rendezvous.h"

namespace hyperion::parallel {

using std::chrono::milliseconds;

std::map<std::string, std::string> nccl_environment(const CommOptions& options) {
  // 3: after an error cleanup is left to the end of the process; other modes abort before the recorder has
  // dumped.
  std::map<std::string, std::string> result = {
      {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "3"},
      // A communicator allocates everything when it is created, not in the first collective of a kind.
      {"NCCL_RUNTIME_CONNECT", "0"},
      {"TORCH_FR_BUFFER_SIZE", std::to_string(options.trace_buffer_size)}};
  if (options.trace_buffer_size > 0) {
    result.emplace("TORCH_NCCL_DUMP_ON_TIMEOUT", "1");
    // The watchdog ends the job after four times this, even if the dump was faster.
    result.emplace("TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", "2500");
    if (!options.trace_prefix.empty()) result["TORCH_FR_DUMP_TEMP_FILE"] = options.trace_prefix;
  }
  return result;
}

GroupTraffic traffic_of(MeshDim dim, const CommOptions& options) {
  if (dim == MeshDim::kPp) return GroupTraffic::kStages;
  const bool exchanges = dim == MeshDim::kCp || dim == MeshDim::kEp || dim == MeshDim::kEpNodes ||
                         dim == MeshDim::kEpInNode || (dim == MeshDim::kTp && options.chunks_tensor_parallel);
  return exchanges ? GroupTraffic::kExchanges : GroupTraffic::kCollectives;
}

ProcessGroups::ProcessGroups(const Mesh& mesh, const Environment& environment, const CommOptions& options)
    : options_(options), environment_(environment) {
  PhaseGuard phase("rendezvous");
  if (options.backend == CommBackend::kNccl) report_failures_of_threads();
  const bool real = options.backend != CommBackend::kFake && environment.world_size > 1;
  const bool nccl = options.backend == CommBackend::kNccl;
  if (real) {
    network_ = describe_network(gloo_interfaces(environment), nccl && !options.staged, network_variables());
    if (nccl) {
      require_consistent_variables();
      set_unless_user_did(nccl_environment(options));
    }
    Fingerprint identity = options.identity;
    identity["WORLD_SIZE"] = std::to_string(environment.world_size);
    identity["mesh"] = mesh.describe();
    identity["device"] = options.staged ? "cuda, HYPERION_COMM=staged" : nccl ? "cuda" : "cpu";
    identity["WORLD_SIZE = LOCAL_WORLD_SIZE"] = environment.single_host() ? "yes" : "no";
    store_ = join_ranks(environment, identity, options.init_timeout, options.response_timeout);
    const StoreWatch watch(environment, 2 * options.init_timeout);
    detector_ =
        std::make_unique<FailureDetector>(store_, environment, options.init_timeout, options.response_timeout,
                                          /*ends_process=*/nccl);
  }

  // Groups that carry parameters, gradients and activations have connections of their own; the loss group is
  // the world or fsdp group where these have the same ranks.
  std::map<std::vector<int>, std::shared_ptr<Communicator>> shared;
  std::vector<MeshDim> dims = {MeshDim::kWorld, MeshDim::kFsdp, MeshDim::kDpReplicate, MeshDim::kCp,
                               MeshDim::kTp,    MeshDim::kPp,   MeshDim::kLoss};
  if (mesh.degree(MeshDim::kEp) > 1) dims.insert(dims.end(), {MeshDim::kEfsdp, MeshDim::kEp});
  if (mesh.degree(MeshDim::kEpNodes) > 1) dims.insert(dims.end(), {MeshDim::kEpNodes, MeshDim::kEpInNode});
  for (const MeshDim dim : dims) {
    if (real && nccl && (dim == MeshDim::kWorld || dim == MeshDim::kLoss)) continue;
    const std::vector<int> ranks = mesh.group(environment.rank, dim);
    auto& group = groups_[dim];
    if (const auto existing = shared.find(ranks); dim == MeshDim::kLoss && existing != shared.end())
      group = existing->second;
    else
      group = make_group(mesh.group_name(environment.rank, dim), mesh.coordinate(environment.rank, dim),
                         ranks, options, environment.single_host() || dim == MeshDim::kEpInNode,
                         traffic_of(dim, options));
    if (dim == MeshDim::kWorld || dim == MeshDim::kFsdp) shared.try_emplace(ranks, group);
  }
  if (mesh.degree(MeshDim::kEtp) > 1) groups_[MeshDim::kEtp] = groups_[MeshDim::kTp];  // the same ranks
  const std::vector<int> stages = mesh.group(environment.rank, MeshDim::kPp);
  const auto name = [&, slice = mesh.slice(environment.rank, MeshDim::kPp)](const char* what) {
    return fmt::format("{}/{}", what, slice);
  };
  // Through shared memory one group serves both directions: who waits for one moves the bytes of the other.
  if (real && nccl && !options.staged && stages.size() > 1)
    pp_down_ = make_group(name("pp_down"), mesh.coordinate(environment.rank, MeshDim::kPp), stages, options,
                          environment.single_host(), GroupTraffic::kStages);
  if (options.tied) {
    const std::vector<int> ranks = {stages.at(options.tied->first), stages.at(options.tied->second)};
    if (ranks == stages)
      tied_ = groups_[MeshDim::kPp];
    else if (const auto member = std::ranges::find(ranks, environment.rank); member != ranks.end())
      tied_ = make_group(name("tied"), static_cast<int>(member - ranks.begin()), ranks, options,
                         environment.single_host(), GroupTraffic::kStages);
  }
  if (!real) {
    options_.host_fan_out = 0;
    // In a dry run no messages come from rank 0: the rank that runs takes its part.
    if (environment.rank > 0)
      host_ = make_group("host/0", 0, first_ranks(environment.world_size), options_, /*one_host=*/true);
    return;
  }
  if (nccl && !environment.single_host() && options.host_fan_out == 0) options_.host_fan_out = kHostFanOut;
  if (!environment.single_host()) {
    const StoreWatch watch(environment, 2 * options.init_timeout);
    ranks_per_node_ = agree_on_ranks_per_node(*store_, environment);
    if (ranks_per_node_ == 1 && environment.local_world_size > 1 && environment.rank == 0)
      log_warning(
          "the ranks are not numbered node by node (srun --distribution=cyclic?), so groups that should be "
          "inside a node exchange over the network; number them so (srun --distribution=block)");
  }
  if (options_.host_fan_out > 0)
    network_.push_back(describe_host_tree(environment, ranks_per_node_, options_.host_fan_out));
  if (nccl || options_.host_fan_out > 0) host_ = make_host_group("host/0");
}

ProcessGroups::~ProcessGroups() = default;

Communicator& ProcessGroups::get(MeshDim dim) const {
  const auto group = groups_.find(dim);
  if (group == groups_.end()) throw_bug("there is no group of dimension {}", name_of(dim));
  return *group->second;
}

ReduceChain ProcessGroups::loss_groups() const {
  if (groups_.contains(MeshDim::kLoss)) return chain({MeshDim::kLoss, MeshDim::kPp});
  return chain({MeshDim::kFsdp, MeshDim::kDpReplicate, MeshDim::kPp});
}

ReduceChain ProcessGroups::all_ranks() const {
  if (groups_.contains(MeshDim::kWorld)) return ReduceChain({&world()});
  return chain({MeshDim::kFsdp, MeshDim::kDpReplicate, MeshDim::kPp, MeshDim::kTp});
}

std::vector<Communicator*> ProcessGroups::expert_groups() const {
  if (!groups_.contains(MeshDim::kEp)) return {};
  std::vector<Communicator*> groups = {&get(MeshDim::kEfsdp), &get(MeshDim::kEp)};
  if (groups_.contains(MeshDim::kEtp)) groups.push_back(&get(MeshDim::kEtp));
  return groups;
}

ReduceChain ProcessGroups::chain(std::initializer_list<MeshDim> dims) const {
  std::vector<Communicator*> groups;
  for (const MeshDim dim : dims)
    if (get(dim).size() > 1) groups.push_back(&get(dim));
  return ReduceChain(std::move(groups));
}

std::vector<Communicator*> ProcessGroups::all_groups() const {
  std::vector<Communicator*> communicators;
  for (const auto& [dim, group] : groups_) communicators.push_back(group.get());
  for (const auto& group : {host_, pp_down_, tied_})
    if (group) communicators.push_back(group.get());
  return communicators;
}

void ProcessGroups::leave(FailureDetector::End end) {
  if (detector_) detector_->leave(end);
}

std::shared_ptr<Communicator> ProcessGroups::make_host_group(const std::string& name) {
  const int rank = environment_.rank, world = environment_.world_size;
  CommOptions options = options_;
  if (options.backend == CommBackend::kNccl) options.backend = CommBackend::kGloo;
  if (options.host_fan_out == 0)
    return make_group(name, rank, first_ranks(world), options, environment_.single_host());
  std::vector<std::shared_ptr<Communicator>> groups;
  for (const HostTreeLevel& level : host_tree_plan(name, rank, world, ranks_per_node_, options.host_fan_out))
    groups.push_back(make_group(level.name, level.index, level.ranks, options, level.one_node));
  const std::shared_ptr<Communicator> tree = make_host_tree(name, rank, world, groups);
  for (const auto& group : groups) install_post_mortem(*group, tree.get());
  return tree;
}

std::shared_ptr<Communicator> ProcessGroups::new_host_group(const std::string& name) {
  auto group = make_host_group(name + "/0");
  group->set_observer(observer_);
  return group;
}

namespace {

// Throws if the message is that of failed NVLink SHARP, whose multicast memory is the fabric's and not the
// GPU's, or of a GPU without memory for the communicator. NCCL says "unhandled cuda error" for both.
void throw_what_nccl_lacks(const std::exception& error, int rank, const CommOptions& options,
                           const std::string& group, GroupTraffic traffic) {
  constexpr double kGiB = 1 << 30;
  const std::string_view text = error.what();
  const auto says = [&](std::string_view part) { return text.find(part) != std::string_view::npos; };
  if (says("NVLS") || says("Multicast"))
    throw_comm(
        "rank {}: NCCL got no multicast memory of the NVLink switches (NVLS) for group {}, which is not the "
        "GPU's memory: set NCCL_NVLS_ENABLE=0 on all ranks, or let the host's administrator look at the "
        "fabric manager ({})",
        rank, group, brief(error));
  const int device = options.device_index;
  const DeviceLibrary::Memory memory = device_library().memory(device);
  if (!exhausted_resource(error) &&
      !(says("unhandled cuda error") &&
        static_cast<double>(memory.free) < communicator_bytes(traffic, options.pipeline_ctas)))
    return;
  const auto gib = [](int64_t bytes) { return fmt::format("{:.2f} GiB", static_cast<double>(bytes) / kGiB); };
  throw Error(
      ExitCode::kResources,
      fmt::format("rank {}: the memory of GPU {} ran out while NCCL connected group {}: of {} are {} free, "
                  "{} reserved for this rank's tensors, {} used by contexts, NCCL and other processes; "
                  "end other programs on that GPU",
                  rank, device, group, gib(memory.total), gib(memory.free), gib(memory.reserved),
                  gib(memory.total - memory.free - memory.reserved)));
}

}  // namespace

std::shared_ptr<Communicator> ProcessGroups::make_group(const std::string& name, int rank,
                                                        const std::vector<int>& ranks,
                                                        const CommOptions& options, bool one_host,
                                                        GroupTraffic traffic) {
  if (ranks.size() == 1) return make_solo_communicator(name, ranks[0]);
  if (options.backend == CommBackend::kFake) return make_fake_communicator(name, rank, ranks);
  const auto store = c10::make_intrusive<c10d::PrefixStore>(name, store_);
  std::shared_ptr<Communicator> group;
  try {
    if (options.backend == CommBackend::kGloo) {
      const StoreWatch watch(environment_, 2 * options.init_timeout);  // two exchanges in sequence
      if (options.shared_memory && one_host) {
        group = make_shared_memory_communicator(name, rank, ranks, *store, options.init_timeout,
                                                options.mailbox_pieces);
      }
      if (!group) {
        group = make_gloo_communicator(name, rank, ranks, store, environment_, options.init_timeout);
      }
    } else if (options.staged) {
      const StoreWatch watch(environment_, 2 * options.init_timeout);
      group = make_shared_memory_communicator(name, rank, ranks, *store, options.init_timeout,
                                              options.mailbox_pieces, /*staged=*/true);
      if (!group)
        throw_config(
            "HYPERION_COMM=staged: the ranks of group {} cannot map each other's memory; start them "
            "in one PID namespace of one host",
            name);
    } else {
      const PhaseGuard phase(fmt::format("connection of group {}", name));
      const CtaLimits limits = cta_limits(traffic, options.pipeline_ctas);
      const NcclOptions nccl{.name = name,
                             .timeout = options.init_timeout,
                             .device_index = options.device_index,
                             .high_priority = true,
                             .max_ctas = limits.all,
                             .nvls_ctas = limits.nvls};
      const int size = static_cast<int>(ranks.size());
      group = make_nccl_communicator(name, rank, ranks,
                                     device_library().make_nccl_backend(store, rank, size, nccl));
    }
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    if (options.backend == CommBackend::kNccl && !options.staged)
      throw_what_nccl_lacks(error, environment_.rank, options, name, traffic);
    if (exhausted_resource(error) || gpu_fault(error)) throw;
    throw_comm("rank {} could not connect group {} (ranks {}): {}", environment_.rank, name, rank_list(ranks),
               brief(error));
  }
  install_post_mortem(*group, group.get());
  return group;
}

void ProcessGroups::install_post_mortem(Communicator& group, Communicator* connections) {
  group.set_post_mortem([detector = detector_.get(), ranks = group.global_ranks(), connections](
                            const std::string& operation, const std::string& phase) {
    connections->abort();  // ranks that wait for this one notice before they are asked
    return detector->find_lost_ranks(ranks, operation, phase);
  });
}

void ProcessGroups::set_observer(const CommObserver& observer) {
  observer_ = observer;
  for (Communicator* group : all_groups()) group->set_observer(observer);
}

void ProcessGroups::set_timeout(milliseconds timeout) {
  for (Communicator* group : all_groups()) group->set_timeout(timeout);
}

}  // namespace hyperion::parallel
