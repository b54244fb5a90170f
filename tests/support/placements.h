// How the ranks of a test hold a tensor.
#pragma once

#include "checkpoint/save_plan.h"
#include "checkpoint/state.h"

namespace hyperion::test {

// Cut by rows over `shards` ranks.
inline checkpoint::Placement cut_by_rows(int shards, int shard = 0, int replicas = 1, int replica = 0) {
  return {.cuts = {{.parts = shards, .index = shard}}, .replicas = replicas, .replica = replica};
}

inline checkpoint::Placement whole_on(int ranks, int rank = 0) {
  return {.cuts = {}, .replicas = ranks, .replica = rank};
}

// SaverOptions::held_part of ranks that are numbered replica by replica, in one shard by shard. The `tensor`
// ranks of a shard divide some of the tensors before those are cut by rows, and hold the others alike.
inline auto places_on(int shards, int tensor = 1) {
  return [=](const checkpoint::SaveLayout::Kind& kind, int rank) -> checkpoint::HeldPart {
    const int number = rank % tensor, shard = rank / tensor % shards, replica = rank / tensor / shards;
    if (kind.cuts.empty()) return {0, rank};
    if (kind.cuts.size() == 1) return {shard, replica * tensor + number};
    return {number * shards + shard, replica};
  };
}

}  // namespace hyperion::test
