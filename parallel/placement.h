// Which part of a tensor each rank of a mesh holds. Pure: any rank can ask it of any other.
#pragma once

#include <vector>

#include "base/parameter.h"
#include "base/placement.h"
#include "parallel/mesh.h"

namespace hyperion::parallel {

// Of a parameter (with its moments and its average) of pipeline stage `home`: cut as tensor parallel layers
// divide it (Parameter::cuts, of which only the dimension and the number of parts are read here), then by
// rows over the fsdp group. Its replicas are the ranks along dp_replicate, and for one that the layers do not
// divide those of the tensor parallel group too.
//
// A stack of experts that ep divides, and each of them etp, is cut over efsdp then: by experts, or, where
// there are more ranks than experts, each expert's rows in equal stretches, as many of them as divide the
// rows and the ranks and find a rank each. Both are stretches of the local stack in its order, one for each
// rank; the last ranks' may be empty.
Placement placement_of(const Parameter& parameter, int home, const Mesh& mesh, int rank);

// The same of a tensor that is known by its cuts (as above), pipeline stage and domain alone. A last cut of
// one part is of no rank: the fsdp group has replicas.
Placement placement_of(std::vector<Cut> cuts, int home, const Mesh& mesh, int rank,
                       Domain domain = Domain::kDense);

// Of a tensor that every rank of that pipeline stage has in full.
Placement replicated_in_stage(int home, const Mesh& mesh, int rank);

// Of a tensor that every rank has in full.
Placement replicated_placement(const Mesh& mesh, int rank);

}  // namespace hyperion::parallel
