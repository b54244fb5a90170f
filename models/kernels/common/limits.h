// What CUDA kernels take at most; nothing of CUDA is needed to know it.
#pragma once

namespace hyperion::kernels {

inline constexpr int kMaxFusedExperts = 1024;  // of a layer

}  // namespace hyperion::kernels
