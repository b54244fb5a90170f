// Thread blocks (CTAs) and GPU memory of one NCCL communicator, by the traffic of its group. The bytes are
// estimates that no GPU has confirmed (docs/notes/communicators.md).
#pragma once

#include <algorithm>
#include <cstdint>

namespace hyperion::parallel {

enum class GroupTraffic : uint8_t {
  kCollectives,  // all-gathers and reductions of weights, gradients and activations
  kExchanges,    // all-to-alls, rings, and chunks that overlap a matmul
  kStages,       // sends and receives between pipeline stages
};

// The most thread blocks of a launch. Each block occupies one SM, also while it waits for its peer. 0: NCCL
// chooses.
struct CtaLimits {
  int all = 0;
  int nvls = 0;  // collectives by NVLink SHARP
  bool operator==(const CtaLimits&) const = default;
};

inline constexpr int kExchangeCtas = 16, kPipelineCtas = 4;

// `pipeline_ctas` is the limit between pipeline stages.
constexpr CtaLimits cta_limits(GroupTraffic traffic, int pipeline_ctas = kPipelineCtas) {
  if (traffic == GroupTraffic::kCollectives) return {};
  if (traffic == GroupTraffic::kExchanges) return {.all = kExchangeCtas};
  return {.all = pipeline_ctas, .nvls = 1};
}

// The least and the most bytes of a communicator that NCCL sizes itself.
inline constexpr double kMinCommunicatorBytes = 256.0 * (1 << 20), kMaxCommunicatorBytes = 1536.0 * (1 << 20);

// The most bytes of a communicator. ProcessGroups connects rings, trees and NVLink SHARP of every
// communicator when it is created, and the pairs of ranks that exchange something before the model is
// allocated.
constexpr double communicator_bytes(GroupTraffic traffic, int pipeline_ctas = kPipelineCtas) {
  if (traffic == GroupTraffic::kCollectives) return kMaxCommunicatorBytes;
  constexpr double kConnection = 9.4e6;  // buffers of the protocols LL, LL128 and Simple, in one channel
  constexpr double kNvlsCta = 17e6;
  constexpr int kRingAndTrees = 3, kMaxNvlsCtas = 16;
  const CtaLimits limits = cta_limits(traffic, pipeline_ctas);
  const int peers = traffic == GroupTraffic::kStages ? 2 : 7;  // 7: the other ranks of a node
  const int nvls = limits.nvls > 0 ? limits.nvls : std::min(limits.all, kMaxNvlsCtas);
  return kConnection * limits.all * (kRingAndTrees + peers) + kNvlsCta * nvls;
}

}  // namespace hyperion::parallel
