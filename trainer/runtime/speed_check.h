// How fast the GPUs of a job compute and copy, and how fast its groups exchange, measured before the model
// takes the memory: a card that is slow holds up all others in every step, and NCCL falls back to plain TCP
// without a word where the network's library is missing.
#pragma once

#include <string>
#include <tuple>
#include <vector>

#include <c10/core/Device.h>

#include "parallel/comm/process_group.h"

namespace hyperion::trainer {

struct CardSpeed {
  std::string host;
  int rank = 0;
  double tflops = 0, copy_gbs = 0;  // bf16 products; bytes read and written per second / 1e9
  static auto members(auto& self) { return std::tie(self.host, self.rank, self.tflops, self.copy_gbs); }
};

struct GroupSpeed {
  std::string group;  // "fsdp/0"
  int ranks = 0;
  int on_host = 0;                     // of these, on this rank's host
  double gather_gbs = 0, sum_gbs = 0;  // sent by this rank per second, / 1e9;
  // of the ranks of a pipeline both are what is sent to the next stage
};

// Sentences for warnings (pure): cards that compute or copy more than 10 % slower than the median, at most
// eight of them; groups over hosts below 10 GB/s, and those with several ranks per host, which share all its
// network adapters, below a sixth of the fastest group inside a host.
std::vector<std::string> slow_cards(const std::vector<CardSpeed>& cards);
std::vector<std::string> slow_groups(const std::vector<GroupSpeed>& groups);

// Of `ranks`, how many are on the host of rank `own`; `hosts`: of all ranks. Pure. However the ranks are
// numbered.
int ranks_on_host(const std::vector<std::string>& hosts, const std::vector<int>& ranks, int own);

// Collective: each GPU multiplies and copies for `seconds`, then each group gathers and sums 64 MiB; in a
// pipeline each stage but the last sends as much to the next. Logs
// what was found, and the warnings on rank 0. Takes up to 640 MiB of the GPU, and gives it back.
void check_speed(const parallel::ProcessGroups& groups, const parallel::Mesh& mesh,
                 const parallel::Environment& environment, at::Device device, double seconds);

}  // namespace hyperion::trainer
