// What a configuration can switch on, with the sentence that refuses it where it does not exist (yet).
// Whoever builds a feature empties its refusal in features.cpp: the check, --help and the docs follow.
#pragma once

#include <vector>

#include "trainer/config/option.h"

namespace hyperion {

extern const Feature kCustomConfigModule, kProfiling, kMemorySnapshot, kTensorBoard, kWandb, kConverters,
    kFloat8, kMx, kGroupedFloat8, kGroupedMx, kEarlyStep, kBfloat16Masters, kTensorParallel,
    kPipelineParallel, kContextParallel, kExpertParallel, kCheckpoint, kHfQuantized, kEma, kSelective,
    kMemoryBudget, kCompile, kLocalTensor, kMemoryEstimation, kFaultTolerance, kCustomImport,
    kCustomArgsModule, kValidation, kDeterministic, kExperts;

const std::vector<const Feature*>& features();

}  // namespace hyperion
