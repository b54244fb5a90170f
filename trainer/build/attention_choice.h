// Which kernel computes attention. On a CPU ours, or libtorch's where it is asked for. On a GPU: cuDNN's is
// the fastest where it serves, but builds a plan for a shape when it is first asked, and some versions refuse
// shapes or GPUs. So it is tried once, before the model takes the memory.
#pragma once

#include <ATen/core/Tensor.h>

#include "models/args/model_args.h"
#include "parallel/comm/communicator.h"
#include "trainer/config/job_config.h"

namespace hyperion::trainer {

// Settles for the process what model.attention asks for, equal on all ranks, and logs it. On a GPU, where
// cuDNN serves the job's shapes, its forward, and its backward on autograd's thread, run once with a batch of
// training and, where that differs, of validation; the memory is given back. A ring of context parallel ranks
// is tried as one (models/parts/attention/ring_attention.h). Results that are not finite, or
// far from flash attention's, are a failure like an error. A failure on any rank makes every rank use flash
// attention, with a warning. Collective over `ranks`. Throws Error(kUsage) where "cudnn" is asked for and the
// device, the shapes or the trial do not allow it, or HYPERION_CPU_INSTRUCTIONS is none that a CPU has.
void choose_attention(const models::ModelArgs& args, const config::JobConfig& config, at::Device device,
                      parallel::Communicator& ranks);

}  // namespace hyperion::trainer
