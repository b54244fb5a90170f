// The memory of one NCCL communicator on its GPU: its buffers at least; at most, with NVLink SHARP and the
// connections of all algorithms, which they are made with (ProcessGroups). Estimates that no GPU has
// confirmed.
#pragma once

namespace hyperion::parallel {

inline constexpr double kLeastOfCommunicator = 256.0 * (1 << 20), kMostOfCommunicator = 1536.0 * (1 << 20);

}  // namespace hyperion::parallel
