// Which ranks write a checkpoint: checkpoint.writers. Pure.
#pragma once

#include <cstdint>
#include <string>

#include "checkpoint/types/choices.h"
#include "trainer/config/choices.h"

namespace hyperion::config {

// Above it "auto" means one replica, where there are several: each file costs the metadata servers of a
// shared file system, which all ranks ask at the same time.
inline constexpr int64_t kMaxRanksThatAllWrite = 512;

struct ChosenWriters {
  checkpoint::Writers writers;
  std::string text;  // who writes and why: "all 4 ranks (checkpoint.writers = "auto": at most 512 ranks)"
};

// `replicas`: how many of the job's `ranks` hold the same shard of the weights (HSDP); 1: none does.
ChosenWriters choose_writers(WritersChoice asked, int64_t ranks, int64_t replicas);

}  // namespace hyperion::config
