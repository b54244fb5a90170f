// Replays the tensors of a block in the order in which its forward and backward allocate and free them
// (trainer/plan/step_shape.h), of which a model of the allocator makes the memory that a step reserves. Pure.
#pragma once

#include <array>

#include "trainer/plan/caching_allocator.h"
#include "trainer/plan/step_shape.h"

namespace hyperion::trainer {

// The unsharded gradients of a unit. They live from the first wgrad that adds to them until they are reduced.
using UnitGradients = std::array<CachingAllocator::Block, BlockShape::kParts>;
using BlockTensors = std::array<CachingAllocator::Block, BlockShape::kTensors>;

// Returns the block's output. `tensors` has its input and keeps what backward needs.
CachingAllocator::Block replay_forward(const BlockShape& block, config::RecomputeMode mode,
                                       CachingAllocator& memory, BlockTensors& tensors);
// Replaces the gradient of the output by that of the input. Without `gradients` it keeps what
// replay_weight_gradients() reads, and makes no gradients of weights.
void replay_backward(const BlockShape& block, config::RecomputeMode mode, CachingAllocator& memory,
                     BlockTensors& tensors, CachingAllocator::Block& gradient, UnitGradients* gradients);
void replay_weight_gradients(const BlockShape& block, CachingAllocator& memory, BlockTensors& tensors,
                             UnitGradients& gradients);

}  // namespace hyperion::trainer
