// How the ranks of a test hold a tensor.
#pragma once

#include "checkpoint/state.h"

namespace hyperion::test {

// Cut by rows over `shards` ranks.
inline checkpoint::Placement cut_by_rows(int shards, int shard = 0, int replicas = 1, int replica = 0) {
  return {.cuts = {{.parts = shards, .index = shard}}, .replicas = replicas, .replica = replica};
}

inline checkpoint::Placement whole_on(int ranks, int rank = 0) {
  return {.cuts = {}, .replicas = ranks, .replica = rank};
}

}  // namespace hyperion::test
