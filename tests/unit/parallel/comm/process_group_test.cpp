#include "parallel/comm/process_group.h"

#include <map>

#include <catch2/catch.hpp>
#include <fmt/format.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

namespace hyperion::parallel {

TEST_CASE("a dry run has every group of any world in one process") {
  Environment environment;
  environment.rank = 37;
  environment.world_size = 4096;
  CommOptions options;
  options.backend = CommBackend::kFake;
  ProcessGroups groups(Mesh({.dp_replicate = 16}, 4096), environment, options);
  CHECK(groups.world().size() == 4096);
  CHECK(groups.get(MeshDim::kFsdp).size() == 256);
  CHECK(groups.get(MeshDim::kFsdp).rank() == 37);
  CHECK(groups.get(MeshDim::kTp).backend() == "solo");
  int64_t sent = 0;
  groups.set_observer([&](const CommOperation& operation) {
    if (operation.group == "fsdp/0" && operation.name == "all_gather") sent += operation.sent_bytes;
  });
  at::Tensor out = at::zeros({256, 3});
  groups.get(MeshDim::kFsdp).all_gather_into(out, at::ones({3}));
  CHECK(out.sum().item<float>() == 768);
  CHECK(sent == 255 * 12);
}

TEST_CASE("the groups of data parallel ranks and the tensor parallel group together are all ranks") {
  Environment environment;
  environment.rank = 13;
  environment.world_size = 16;
  CommOptions options;
  options.backend = CommBackend::kFake;
  ProcessGroups groups(Mesh({.dp_replicate = 2, .dp_shard = 2, .tp = 4}, 16), environment, options);
  CHECK(groups.get(MeshDim::kTp).name() == "tp/3");
  CHECK(groups.get(MeshDim::kTp).global_ranks() == std::vector<int>{12, 13, 14, 15});
  CHECK(groups.get(MeshDim::kFsdp).global_ranks() == std::vector<int>{9, 13});
  CHECK(groups.get(MeshDim::kDpReplicate).global_ranks() == std::vector<int>{5, 13});
  CHECK(groups.get(MeshDim::kLoss).global_ranks() == std::vector<int>{1, 5, 9, 13});
  std::map<std::string, int> reductions;
  groups.set_observer([&](const CommOperation& operation) { ++reductions[std::string(operation.group)]; });
  groups.loss_groups().all_reduce_sum(at::ones({1}));
  CHECK(reductions == std::map<std::string, int>{{groups.get(MeshDim::kLoss).name(), 1}});
  groups.all_ranks().all_reduce_max(at::ones({1}));
  CHECK(reductions.at("world/0") == 1);
}

TEST_CASE("a tensor parallel group of all ranks shares its connections with no other group") {
  Environment environment;
  environment.world_size = 4;
  CommOptions options;
  options.backend = CommBackend::kFake;
  ProcessGroups groups(Mesh({.dp_shard = 1, .tp = 4}, 4), environment, options);
  CHECK(&groups.get(MeshDim::kTp) != &groups.world());
  CHECK(groups.get(MeshDim::kTp).name() == "tp/0");
  CHECK(groups.get(MeshDim::kLoss).size() == 1);
}

TEST_CASE("a pipeline's group of all ranks shares its connections with no other group") {
  Environment environment;
  environment.world_size = 4;
  CommOptions options;
  options.backend = CommBackend::kFake;
  ProcessGroups groups(Mesh({.pp = 4, .dp_shard = 1}, 4), environment, options);
  CHECK(&groups.get(MeshDim::kPp) != &groups.world());
  CHECK(groups.get(MeshDim::kPp).name() == "pp/0");
  CHECK(groups.get(MeshDim::kPp).size() == 4);
}

TEST_CASE("the ranks with a tied table have a group, which is the pipeline's where it has no others") {
  Environment environment;
  environment.world_size = 8;
  CommOptions options;
  options.backend = CommBackend::kFake;
  options.tied = {0, 3};
  const auto tied = [&](int rank, const Mesh& mesh) {
    environment.rank = rank;
    const ProcessGroups groups(mesh, environment, options);
    CHECK(&groups.pp_down() == &groups.get(MeshDim::kPp));  // but over NCCL
    return groups.tied_group() == nullptr
               ? "none"
               : fmt::format("{} {}", groups.tied_group()->name(), groups.tied_group()->rank());
  };
  const Mesh four({.pp = 4, .dp_shard = 2}, 8), two({.pp = 2, .dp_shard = 4}, 8);
  CHECK(tied(1, four) == "tied/1 0");
  CHECK(tied(7, four) == "tied/1 1");
  CHECK(tied(3, four) == "none");
  options.tied = {0, 1};
  CHECK(tied(5, two) == "pp/1 1");
}

TEST_CASE("one process needs no rendezvous") {
  Environment environment;
  environment.master_addr = "nowhere.invalid";
  ProcessGroups groups(Mesh({}, 1), environment, {});
  for (MeshDim dim :
       {MeshDim::kWorld, MeshDim::kFsdp, MeshDim::kDpReplicate, MeshDim::kTp, MeshDim::kPp, MeshDim::kLoss})
    CHECK(groups.get(dim).backend() == "solo");
  groups.set_timeout(std::chrono::seconds(1));
  groups.host().barrier();
}

TEST_CASE("a communicator has as many thread blocks as the traffic of its group needs") {
  CommOptions options;
  for (const MeshDim dim : {MeshDim::kFsdp, MeshDim::kDpReplicate, MeshDim::kEfsdp, MeshDim::kTp})
    CHECK(traffic_of(dim, options) == GroupTraffic::kCollectives);
  for (const MeshDim dim : {MeshDim::kCp, MeshDim::kEp, MeshDim::kEpNodes, MeshDim::kEpInNode})
    CHECK(traffic_of(dim, options) == GroupTraffic::kExchanges);
  CHECK(traffic_of(MeshDim::kPp, options) == GroupTraffic::kStages);
  options.chunks_tensor_parallel = true;
  CHECK(traffic_of(MeshDim::kTp, options) == GroupTraffic::kExchanges);
  CHECK(cta_limits(GroupTraffic::kCollectives) == CtaLimits{});  // NCCL chooses
  CHECK(cta_limits(GroupTraffic::kExchanges) == CtaLimits{.all = 16});
  CHECK(cta_limits(GroupTraffic::kStages) == CtaLimits{.all = 4, .nvls = 1});
  CHECK(cta_limits(GroupTraffic::kStages, 8).all == 8);
  CHECK(communicator_bytes(GroupTraffic::kStages) < kMinCommunicatorBytes);
  CHECK(communicator_bytes(GroupTraffic::kStages, 8) > communicator_bytes(GroupTraffic::kStages));
}

TEST_CASE("the flight recorder is set up by the keys of v0.2.2") {
  CommOptions options;
  options.trace_buffer_size = 100;
  options.trace_prefix = "out/comm_traces/rank_";
  using Variables = std::map<std::string, std::string>;
  CHECK(nccl_environment(options) == Variables{{"TORCH_NCCL_ASYNC_ERROR_HANDLING", "3"},
                                               {"NCCL_RUNTIME_CONNECT", "0"},
                                               {"TORCH_FR_BUFFER_SIZE", "100"},
                                               {"TORCH_NCCL_DUMP_ON_TIMEOUT", "1"},
                                               {"TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", "2500"},
                                               {"TORCH_FR_DUMP_TEMP_FILE", "out/comm_traces/rank_"}});
  options.trace_buffer_size = 0;
  CHECK(nccl_environment(options) == Variables{{"TORCH_NCCL_ASYNC_ERROR_HANDLING", "3"},
                                               {"NCCL_RUNTIME_CONNECT", "0"},
                                               {"TORCH_FR_BUFFER_SIZE", "0"}});
}

}  // namespace hyperion::parallel
