// Placement says which part of a tensor each rank of a mesh holds. It is pure: any rank can compute that of
// any other.
#pragma once

#include <vector>

#include "base/parameter_description.h"
#include "base/placement.h"
#include "parallel/mesh.h"

namespace hyperion::parallel {

// The placement of a parameter, its moments and its EMA in pp rank `pp_rank`. TP shards it by
// LayerShard::cuts (only dimension and number of parts are read), then the fsdp group shards the rows. The
// ranks along dp_replicate hold replicas, and the tp group too if the layers replicate the parameter.
//
// Expert weights are sharded over ep, then etp, then efsdp. If efsdp exceeds the number of experts, the
// rows of each expert are split too: into the largest number of equal parts that divides both rows and
// ranks and leaves each part a rank. Each rank holds one contiguous part of the local stack; the last
// ranks' parts may be empty.
Placement placement_of(const LayerShard& parameter, int pp_rank, const Mesh& mesh, int rank);

// The number of equal parts into which the rows of each of `experts` matrices are split over `ranks` efsdp
// ranks, as above.
int64_t parts_per_expert(int64_t experts, int64_t rows, int64_t ranks);

// The placement of a tensor known only by its cuts (as above), pp rank and domain. If the last cut has one
// part, the fsdp group holds replicas.
Placement placement_of(std::vector<Cut> cuts, int pp_rank, const Mesh& mesh, int rank,
                       Domain domain = Domain::kDense);

// The placement of a tensor that is replicated over the ranks of one pp rank.
Placement replicated_in_pp_rank(int pp_rank, const Mesh& mesh, int rank);

// The placement of a tensor that is replicated over all ranks.
Placement replicated_placement(const Mesh& mesh, int rank);

}  // namespace hyperion::parallel
