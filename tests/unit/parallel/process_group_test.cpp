#include "parallel/process_group.h"

#include <catch2/catch.hpp>

#include <ATen/ATen.h>

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

TEST_CASE("one process needs no rendezvous") {
  Environment environment;
  environment.master_addr = "nowhere.invalid";
  ProcessGroups groups(Mesh({}, 1), environment, {});
  for (MeshDim dim : kMeshDims) CHECK(groups.get(dim).backend() == "solo");
  groups.set_timeout(std::chrono::seconds(1));
  groups.host().barrier();
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
