// Chooses the attention kernel of the process. A CPU uses ours, or libtorch's if configured. On a GPU cuDNN's
// is the fastest where it serves; it is tried (trainer/build/attention_trial.h) before the model is
// allocated.
#pragma once

#include <ATen/core/Tensor.h>

#include "models/args/model_args.h"
#include "parallel/comm/communicator.h"
#include "trainer/config/job_config.h"

namespace hyperion::trainer {

// Sets the process-wide kernel that model.attention asks for, equal on all ranks, and logs it. If cuDNN
// supports the job's shapes on the GPU, it is tried with a training batch and, if the shape differs, with a
// validation batch; the memory is freed afterwards. A context parallel ring is tried with each kind of call
// that a rank makes: for its own keys, for earlier and for later ones; gathered keys with the last part. A
// failure on any rank makes every rank use flash attention, with a warning. Collective over `ranks`. Throws
// Error(kUsage) if "cudnn" is configured and the device, the shapes or the trial do not allow it, or if
// HYPERION_CPU_INSTRUCTIONS names no known instruction set.
void choose_attention(const models::ModelArgs& args, const config::JobConfig& config, at::Device device,
                      parallel::Communicator& ranks);

}  // namespace hyperion::trainer
