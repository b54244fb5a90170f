// Measures how fast the job's GPUs compute and copy, and how fast its process groups communicate, before the
// model is allocated. A slow card delays all ranks in every step, and NCCL falls back to plain TCP silently
// if the network's library is missing.
#pragma once

#include <string>
#include <tuple>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "parallel/comm/process_group.h"

namespace hyperion::trainer {

struct CardSpeed {
  std::string host;
  int rank = 0;
  double tflops = 0, copy_gbs = 0;  // bf16 products; bytes read and written per second / 1e9
  std::string clocks{};             // NVML's during the products: "SM at 1410 MHz, 650 W, 61 C"
  std::string throttled{};          // reasons, "thermal, power_brake"; empty if NVML names none
  static auto members(auto& self) {
    return std::tie(self.host, self.rank, self.tflops, self.copy_gbs, self.clocks, self.throttled);
  }
};

struct GroupSpeed {
  std::string group;  // "fsdp/0"
  int ranks = 0;
  int on_host = 0;                     // ranks of the group on this rank's host
  double gather_gbs = 0, sum_gbs = 0;  // sent by this rank per second, / 1e9;
  // in a pipeline group both are the rate of sends to the next stage
};

// Returns the [size, size] operand of the measured products: normal values in bf16, of mean 0 and variance 1.
// A GPU needs much less power for zeros, and so would hide that it is throttled. The job's generators stay as
// they are.
at::Tensor normal_values(int64_t size, at::Device device, uint64_t seed);

// Return warnings (pure). slow_cards() names at most eight cards that compute or copy more than 10 % slower
// than the median, or that NVML calls throttled. slow_groups() names groups that span hosts and run below 10
// GB/s; with several ranks per host, which share all its network adapters, the limit is a sixth of the
// fastest group inside a host.
std::vector<std::string> slow_cards(const std::vector<CardSpeed>& cards);
std::vector<std::string> slow_groups(const std::vector<GroupSpeed>& groups);

// Counts the members of `ranks` on the host of rank `own`, for any numbering of ranks. `hosts` has the host
// of every rank. Pure.
int ranks_on_host(const std::vector<std::string>& hosts, const std::vector<int>& ranks, int own);

// Each GPU multiplies and copies for `seconds` (three quarters of it multiplies without a pause), then each
// group runs an all-gather and an all-reduce of 64 MiB; in a pipeline each stage but the last sends 64 MiB to
// the next. Logs the figures, and the warnings on rank 0. Uses up to 640 MiB of GPU memory and frees it.
// Collective.
void check_speed(const parallel::ProcessGroups& groups, const parallel::Mesh& mesh,
                 const parallel::Environment& environment, at::Device device, double seconds);

}  // namespace hyperion::trainer
