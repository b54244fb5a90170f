#include "parallel/process_group.h"

#include <cstdlib>
#include <exception>
#include <future>
#include <thread>

#include <fmt/ranges.h>
#include <unistd.h>

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "base/error.h"
#include "base/log.h"
#include "parallel/backend_communicator.h"
#include "parallel/device_library.h"
#include "parallel/failure_record.h"
#include "parallel/network.h"
#include "parallel/phase.h"
#include "parallel/shared_memory_communicator.h"

namespace hyperion {
namespace {

using std::chrono::milliseconds;

std::string joined_key(int rank) {
  return fmt::format("joined/{}", rank);
}

c10::intrusive_ptr<c10d::Store> connect(const Environment& environment, milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(environment.master_port);
  options.isServer = environment.rank == 0 && !environment.agent_store;
  options.waitWorkers = false;  // we wait ourselves, to say which ranks are missing
  options.timeout = timeout;
  if (options.isServer && environment.master_listen_fd >= 0)
    options.masterListenFd = environment.master_listen_fd;
  try {
    return c10::make_intrusive<c10d::TCPStore>(environment.master_addr, options);
  } catch (const c10::Error& error) {
    const std::string why = brief(error);
    if (options.isServer && why.find("EADDRINUSE") != std::string::npos) {
      throw_config("rank 0 cannot listen on MASTER_PORT {}: the port is in use; choose another one",
                   options.port);
    }
    throw_comm(
        "rank {} could not {} the rendezvous at {}:{}: {}; check MASTER_ADDR and MASTER_PORT and that rank 0 "
        "runs",
        environment.rank, options.isServer ? "open" : "reach", environment.master_addr, options.port, why);
  }
}

// Rank 0 waits for every rank and then opens the gate with an empty text, or with the error that all ranks
// report.
void gather_ranks(c10d::Store& store, const Environment& environment, milliseconds timeout) {
  const int rank = environment.rank, world = environment.world_size;
  if (store.add(joined_key(rank), 1) > 1) {
    throw_config("two processes have RANK {}: every process of the job needs its own", rank);
  }
  if (rank == 0) {
    std::vector<std::string> keys;
    for (int r = 0; r < world; ++r) keys.push_back(joined_key(r));
    std::string problem;
    try {
      store.wait(keys, timeout);
    } catch (const c10::Error&) {
      std::vector<int> missing;
      for (int r = 0; r < world; ++r) {
        if (!store.check({joined_key(r)})) missing.push_back(r);
      }
      problem = fmt::format(
          "{} of {} ranks joined within {} s, missing: rank {}; see the logs of the missing ranks",
          world - missing.size(), world, timeout.count() / 1000.0, fmt::join(missing, " "));
    }
    store.set("gate", problem);
    if (problem.empty()) return;
    std::vector<std::string> told;
    for (int r = 1; r < world; ++r) {
      if (store.check({joined_key(r)})) told.push_back(fmt::format("told/{}", r));
    }
    try {  // the store ends with this process: let the others read first
      store.wait(told, std::chrono::seconds(3));
    } catch (const c10::Error&) {
    }
    throw_comm("{}", problem);
  }
  std::string problem;
  try {
    store.wait({"gate"}, timeout + std::chrono::seconds(5));  // rank 0 speaks first: it knows who is missing
    problem = store.get_to_str("gate");
    store.set(fmt::format("told/{}", rank), "");
  } catch (const c10::Error& error) {
    throw_comm("rank {} lost rank 0 during rendezvous: {}", rank, brief(error));
  }
  if (!problem.empty()) throw_comm("{}", problem);
}

// What to say when NCCL's watchdog thread ends the process: c10d throws there, where no caller can catch it.
[[noreturn]] void on_terminate() {
  std::string why = "unknown error";
  try {
    if (const auto current = std::current_exception()) std::rethrow_exception(current);
  } catch (const std::exception& error) {
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
    : options_(options),
      rendezvous_(std::make_unique<Rendezvous>()),
      ledger_(std::make_shared<CommLedger>()) {
  PhaseGuard phase("rendezvous");
  rendezvous_->environment = environment;
  const bool real = options.backend != CommBackend::kFake && environment.world_size > 1;
  if (real) {
    network_ = describe_network(gloo_interfaces(environment), options.backend == CommBackend::kNccl,
                                network_variables());
    if (options.backend == CommBackend::kNccl) {
      set_unless_user_did(nccl_environment(options));
      std::set_terminate(on_terminate);
    }
    auto store = connect(environment, options.init_timeout);
    rendezvous_->store = c10::make_intrusive<c10d::PrefixStore>(
        fmt::format("hyperion/{}", environment.restart_count), std::move(store));
    gather_ranks(*rendezvous_->store, environment, options.init_timeout);
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
  return make_group(name + "/0", rendezvous_->environment.rank, world().global_ranks(), host_options());
}

std::shared_ptr<Communicator> ProcessGroups::make_group(const std::string& name, int rank,
                                                        const std::vector<int>& ranks,
                                                        const CommOptions& options) {
  if (ranks.size() == 1) return make_solo_communicator(name, ranks[0], ledger_);
  if (options.backend == CommBackend::kFake) return make_fake_communicator(name, rank, ranks, ledger_);
  const auto store = c10::make_intrusive<c10d::PrefixStore>(name, rendezvous_->store);
  std::shared_ptr<Communicator> group;
  try {
    if (options.backend == CommBackend::kGloo) {
      if (options.shared_memory && rendezvous_->environment.single_host()) {
        group = make_shared_memory_communicator(name, rank, ranks, ledger_, *store, options.init_timeout);
      }
      if (!group) {
        group = make_gloo_communicator(name, rank, ranks, ledger_, store, rendezvous_->environment,
                                       options.init_timeout);
      }
    } else {
      const NcclOptions nccl{name, options.init_timeout, options.device_index, true};
      const int size = static_cast<int>(ranks.size());
      group = make_nccl_communicator(name, rank, ranks, ledger_,
                                     device_library().make_nccl_backend(store, rank, size, nccl));
    }
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw_comm("rank {} could not connect group {} (ranks {}): {}", rendezvous_->environment.rank, name,
               fmt::join(ranks, " "), brief(error));
  }
  group->set_post_mortem(
      [rendezvous = rendezvous_.get(), ranks](const std::string& operation, const std::string& phase) {
        return ask_others(*rendezvous, ranks, operation, phase);
      });
  return group;
}

namespace {

// Every rank that fails leaves a note in the store. Those of the group that leave none within two seconds are
// the ones to look at: they are dead, stopped, or busy elsewhere.
Communicator::PostMortem notes_of_others(c10d::Store& store, int own_rank, const std::vector<int>& ranks,
                                         const std::string& note) {
  const auto key = [](int rank) { return fmt::format("failed/{}", rank); };
  std::vector<int> silent;
  std::string reports;
  store.set(key(own_rank), note);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(2);
  for (int rank : ranks) {
    if (rank == own_rank) continue;
    while (!store.check({key(rank)}) && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(milliseconds(50));
    }
    if (!store.check({key(rank)})) {
      silent.push_back(rank);
    } else {
      reports += fmt::format("; rank {} failed too: {}", rank, store.get_to_str(key(rank)));
    }
  }
  // The store ends with rank 0: let those read it whose operation failed a little later.
  if (own_rank == 0) std::this_thread::sleep_until(deadline + std::chrono::seconds(1));
  if (silent.empty()) return {reports, {}};
  return {fmt::format("; no word from rank {}: see its log first{}", fmt::join(silent, " "), reports),
          silent};
}

}  // namespace

// The store's calls know no timeout, and where the way to its host is cut they do not return. So a thread of
// its own asks, which is left behind when it takes too long.
Communicator::PostMortem ProcessGroups::ask_others(const Rendezvous& rendezvous,
                                                   const std::vector<int>& ranks,
                                                   const std::string& operation, const std::string& phase) {
  auto ask = std::packaged_task<Communicator::PostMortem()>(
      [store = rendezvous.store, rank = rendezvous.environment.rank, ranks,
       note = fmt::format("{} in phase '{}'", operation, phase)] {
        return notes_of_others(*store, rank, ranks, note);
      });
  std::future<Communicator::PostMortem> answer = ask.get_future();
  std::thread(std::move(ask)).detach();
  try {
    if (answer.wait_for(std::chrono::seconds(5)) == std::future_status::ready) return answer.get();
  } catch (const std::exception&) {
  }
  return {"; rank 0, which holds the rendezvous, does not answer: see its log first", {0}};
}

void ProcessGroups::set_timeout(milliseconds timeout) {
  for (auto& [dim, group] : groups_) group->set_timeout(timeout);
  if (host_) host_->set_timeout(timeout);
}

void ProcessGroups::abort() {
  for (auto& [dim, group] : groups_) group->abort();
  if (host_) host_->abort();
}

}  // namespace hyperion
