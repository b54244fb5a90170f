// Which kernel computes attention. On a CPU ours, or libtorch's where it is asked for. On a GPU cuDNN's, the
// fastest where it serves, after a trial (trainer/build/attention_trial.h) before the model takes the memory.
#pragma once

#include <ATen/core/Tensor.h>

#include "models/args/model_args.h"
#include "parallel/comm/communicator.h"
#include "trainer/config/job_config.h"

namespace hyperion::trainer {

// Settles for the process what model.attention asks for, equal on all ranks, and logs it. On a GPU, where
// cuDNN serves the job's shapes, it is tried with a batch of training and, where that differs, of validation;
// the memory is given back. In a ring of context parallel ranks it is tried with each kind of call that a
// rank makes: for its own keys, for earlier and for later ones. A failure on any rank makes every rank use
// flash attention, with a warning. Collective over `ranks`. Throws Error(kUsage) where "cudnn" is asked for
// and the device, the shapes or the trial do not allow it, or HYPERION_CPU_INSTRUCTIONS is none that a CPU
// has.
void choose_attention(const models::ModelArgs& args, const config::JobConfig& config, at::Device device,
                      parallel::Communicator& ranks);

}  // namespace hyperion::trainer
