// GPU memory of one NCCL communicator. The minimum is its buffers. The maximum adds NVLink SHARP and the
// connections of all algorithms, which ProcessGroups creates eagerly. Both are estimates that no GPU has
// confirmed.
#pragma once

namespace hyperion::parallel {

inline constexpr double kMinCommunicatorBytes = 256.0 * (1 << 20), kMaxCommunicatorBytes = 1536.0 * (1 << 20);

}  // namespace hyperion::parallel
