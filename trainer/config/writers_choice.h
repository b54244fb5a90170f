// Chooses the ranks that write a checkpoint (checkpoint.writers). Pure.
#pragma once

#include <cstdint>
#include <string>

#include "checkpoint/types/choices.h"
#include "trainer/config/choices.h"

namespace hyperion::config {

// With more ranks than this, "auto" lets one replica write, if there are several: all ranks ask the metadata
// servers of a shared file system at the same time, and each file costs them.
inline constexpr int64_t kMaxRanksThatAllWrite = 512;

struct ChosenWriters {
  checkpoint::Writers writers;
  std::string text;  // with the reason: "all 4 ranks (checkpoint.writers = "auto": at most 512 ranks)"
};

// `replicas` is the number of the job's `ranks` that hold the same shard of the weights (HSDP); 1 without
// HSDP.
ChosenWriters choose_writers(WritersChoice asked, int64_t ranks, int64_t replicas);

}  // namespace hyperion::config
