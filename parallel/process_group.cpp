#include "parallel/process_group.h"

#include <cstdlib>
#include <exception>

#include <unistd.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "base/device/device_library.h"
#include "base/error.h"
#include "base/log.h"
#include "base/rank_list.h"
#include "base/resources.h"
#include "parallel/backend_communicator.h"
#include "parallel/failure_record.h"
#include "parallel/network.h"
#include "parallel/phase.h"
#include "parallel/post_mortem.h"
#include "parallel/rendezvous.h"
#include "parallel/shared_memory_communicator.h"

namespace hyperion::parallel {
namespace {

using std::chrono::milliseconds;

// What to say when NCCL's watchdog thread ends the process: c10d throws there, where no caller can catch it.
std::terminate_handler terminate_before = nullptr;
[[noreturn]] void on_terminate() {
  std::string why = "unknown error";
  try {
    if (const auto current = std::current_exception()) std::rethrow_exception(current);
  } catch (const std::exception& error) {
    if (exhausted_resource(error) && terminate_before != nullptr) terminate_before();
    why = brief(error);
  } catch (...) {
  }
  spdlog::default_logger()->flush();
  _exit(report_failure(ExitCode::kCommunication, "communication failed: " + why));
}

}  // namespace

std::map<std::string, std::string> nccl_environment(const CommOptions& options) {
  // 3 = on an error leave the clean-up to the end of the process: other modes abort before the recorder has
  // dumped.
  std::map<std::string, std::string> result = {
      {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "3"},
      {"TORCH_FR_BUFFER_SIZE", std::to_string(options.trace_buffer_size)}};
  if (options.trace_buffer_size > 0) {
    result.emplace("TORCH_NCCL_DUMP_ON_TIMEOUT", "1");
    if (!options.trace_prefix.empty()) result["TORCH_FR_DUMP_TEMP_FILE"] = options.trace_prefix;
  }
  return result;
}

struct ProcessGroups::Rendezvous {
  Environment environment;
  c10::intrusive_ptr<c10d::Store> store;
};

ProcessGroups::ProcessGroups(const Mesh& mesh, const Environment& environment, const CommOptions& options)
    : options_(options), rendezvous_(std::make_unique<Rendezvous>()) {
  PhaseGuard phase("rendezvous");
  rendezvous_->environment = environment;
  const bool real = options.backend != CommBackend::kFake && environment.world_size > 1;
  if (real) {
    network_ = describe_network(gloo_interfaces(environment), options.backend == CommBackend::kNccl,
                                network_variables());
    if (options.backend == CommBackend::kNccl) {
      set_unless_user_did(nccl_environment(options));
      if (std::get_terminate() != on_terminate) terminate_before = std::set_terminate(on_terminate);
    }
    Fingerprint identity = options.identity;
    identity["WORLD_SIZE"] = std::to_string(environment.world_size);
    identity["mesh"] = mesh.describe();
    identity["device"] = options.backend == CommBackend::kNccl ? "cuda" : "cpu";
    identity["WORLD_SIZE = LOCAL_WORLD_SIZE"] = environment.single_host() ? "yes" : "no";
    rendezvous_->store = join_ranks(environment, identity, options.init_timeout);
  }

  std::map<std::vector<int>, std::shared_ptr<Communicator>> shareable;
  // Groups that carry parameters and gradients have connections of their own; the rest share by their set of
  // ranks.
  for (MeshDim dim : {MeshDim::kWorld, MeshDim::kFsdp, MeshDim::kDpReplicate, MeshDim::kPp, MeshDim::kTp,
                      MeshDim::kCp, MeshDim::kDpShard, MeshDim::kBatch, MeshDim::kLoss}) {
    const std::vector<int> ranks = mesh.group(environment.rank, dim);
    const bool own = dim == MeshDim::kFsdp || dim == MeshDim::kDpReplicate;
    auto& group = groups_[dim];
    if (const auto found = shareable.find(ranks); !own && found != shareable.end()) {
      group = found->second;
    } else {
      group = make_group(mesh.group_name(environment.rank, dim), mesh.coordinate(environment.rank, dim),
                         ranks, options);
    }
    // A later dimension of the same ranks joins the most specific group: dp_shard the fsdp one, batch the
    // world.
    if (dim != MeshDim::kDpReplicate) shareable.try_emplace(ranks, group);
  }
  if (options.backend == CommBackend::kNccl && environment.world_size > 1) {
    host_ =
        make_group("host/0", environment.rank, mesh.group(environment.rank, MeshDim::kWorld), host_options());
  }
}

ProcessGroups::~ProcessGroups() = default;

CommOptions ProcessGroups::host_options() const {
  CommOptions options = options_;
  if (options.backend == CommBackend::kNccl) options.backend = CommBackend::kGloo;
  return options;
}

std::shared_ptr<Communicator> ProcessGroups::new_host_group(const std::string& name) {
  auto group = make_group(name + "/0", rendezvous_->environment.rank, world().global_ranks(), host_options());
  group->set_observer(observer_);
  return group;
}

std::shared_ptr<Communicator> ProcessGroups::make_group(const std::string& name, int rank,
                                                        const std::vector<int>& ranks,
                                                        const CommOptions& options) {
  if (ranks.size() == 1) return make_solo_communicator(name, ranks[0]);
  if (options.backend == CommBackend::kFake) return make_fake_communicator(name, rank, ranks);
  const auto store = c10::make_intrusive<c10d::PrefixStore>(name, rendezvous_->store);
  std::shared_ptr<Communicator> group;
  try {
    if (options.backend == CommBackend::kGloo) {
      if (options.shared_memory && rendezvous_->environment.single_host()) {
        group = make_shared_memory_communicator(name, rank, ranks, *store, options.init_timeout);
      }
      if (!group) {
        group =
            make_gloo_communicator(name, rank, ranks, store, rendezvous_->environment, options.init_timeout);
      }
    } else {
      const NcclOptions nccl{name, options.init_timeout, options.device_index, true};
      const int size = static_cast<int>(ranks.size());
      group = make_nccl_communicator(name, rank, ranks,
                                     device_library().make_nccl_backend(store, rank, size, nccl));
    }
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    if (exhausted_resource(error)) throw;
    throw_comm("rank {} could not connect group {} (ranks {}): {}", rendezvous_->environment.rank, name,
               rank_list(ranks), brief(error));
  }
  group->set_post_mortem([base = rendezvous_->store, own = rendezvous_->environment.rank, ranks](
                             const std::string& operation, const std::string& phase) {
    return ask_others(base, own, ranks, operation, phase);
  });
  return group;
}

void ProcessGroups::set_observer(const CommObserver& observer) {
  observer_ = observer;
  for (auto& [dim, group] : groups_) group->set_observer(observer);
  if (host_) host_->set_observer(observer);
}

void ProcessGroups::set_timeout(milliseconds timeout) {
  for (auto& [dim, group] : groups_) group->set_timeout(timeout);
  if (host_) host_->set_timeout(timeout);
}

void ProcessGroups::abort() {
  for (auto& [dim, group] : groups_) group->abort();
  if (host_) host_->abort();
}

}  // namespace hyperion::parallel
