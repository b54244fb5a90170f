#include "trainer/attention_choice.h"

#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/autograd.h>

#include "base/counted.h"
#include "base/device/error_text.h"
#include "base/error.h"
#include "base/log.h"
#include "base/processor.h"
#include "models/kernels/attention/attention.h"
#include "models/kernels/attention/cpu.h"
#include "models/ops.h"
#include "parallel/job/phase.h"
#include "trainer/checkpointing/job_state.h"
#include "trainer/config/validate.h"

namespace hyperion::trainer {
namespace {

using at::Tensor;
using kernels::AttentionKernel;

constexpr double kLargestError = 0.05;  // of two bf16 kernels: about 0.005

struct Shape {
  int64_t heads, kv_heads, head_dim, batch, length;
  at::ScalarType dtype;

  std::string describe() const {
    return fmt::format("{} x {} heads of {}, {} of {} tokens", heads, kv_heads, head_dim,
                       counted(batch, "sequence"), length);
  }
};

// [batch, heads, length, head_dim] in the layout that the model's blocks have. The heads differ, sequences do
// not. Random numbers of the device are left alone: they are part of a job's state.
Tensor make_input(const Shape& shape, int64_t heads, uint64_t seed, at::Device device) {
  const auto options = at::TensorOptions(at::kFloat);
  const Tensor values =
      at::randn({shape.length, 1, shape.head_dim}, at::detail::createCPUGenerator(seed), options);
  const Tensor of_heads = at::linspace(0.5, 1.5, heads, options).view({heads, 1});
  return (values.to(device) * of_heads.to(device))
      .to(shape.dtype)
      .repeat({shape.batch, 1, 1, 1})
      .transpose(1, 2);
}

struct Results {
  Tensor output, grad_q, grad_k, grad_v;
};

// By autograd, as in a step: its thread runs the backward, for which cuDNN builds plans in each thread.
Results compute(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& grad) {
  const auto leaf = [](const Tensor& t) { return t.detach().requires_grad_(); };
  const Tensor leaf_q = leaf(q), leaf_k = leaf(k), leaf_v = leaf(v);
  const Tensor output = models::ops::attention(leaf_q, leaf_k, leaf_v, {}, nullptr);
  torch::autograd::backward({output}, {grad});
  return {output.detach(), leaf_q.grad(), leaf_k.grad(), leaf_v.grad()};
}

// Why cuDNN cannot be used for this shape; empty: it can. Leaves cuDNN allowed.
std::string try_cudnn(const Shape& shape, at::Device device) {
  const Tensor q = make_input(shape, shape.heads, 1, device),
               k = make_input(shape, shape.kv_heads, 2, device),
               v = make_input(shape, shape.kv_heads, 3, device),
               grad = make_input(shape, shape.heads, 4, device);
  Results cudnn;
  try {
    cudnn = compute(q, k, v, grad);
  } catch (const c10::OutOfMemoryError&) {
    throw;
  } catch (const c10::AcceleratorError&) {
    throw;  // the GPU is of no use to this process any more
  } catch (const c10::Error& error) {
    return brief(error);
  }
  kernels::allow_cudnn_attention(false);
  const Results flash = compute(q, k, v, grad);
  kernels::allow_cudnn_attention(true);
  const auto norm = [](const Tensor& x) {
    return at::linalg_vector_norm(x, 2, at::OptionalIntArrayRef(), false, at::kFloat).item<double>();
  };
  for (const auto& [what, found, wanted] :
       {std::tuple("output", cudnn.output, flash.output),
        std::tuple("gradient of the queries", cudnn.grad_q, flash.grad_q),
        std::tuple("gradient of the keys", cudnn.grad_k, flash.grad_k),
        std::tuple("gradient of the values", cudnn.grad_v, flash.grad_v)}) {
    const double difference = norm(found - wanted), size = norm(wanted);
    if (!(difference <= kLargestError * size))  // nor where one is NaN
      return fmt::format("its {} differs from flash attention's by {:.3g} of {:.3g} (at most {:.0f} % may)",
                         what, difference, size, 100 * kLargestError);
  }
  return "";
}

// By context parallelism. Where keys are gathered there are more of them than queries, which cuDNN and
// libtorch's attention for CPUs do not take; the blocks of a ring they would take, but no trial covers these.
bool shares_sequences(const config::JobConfig& config) {
  return config.parallelism.context_parallel_degree > 1;
}

// The kernel that serves a shape, where cuDNN is allowed as far as it is now.
AttentionKernel kernel_of(const Shape& shape, const config::JobConfig& config) {
  const Tensor q = at::empty({shape.batch, shape.heads, shape.length, shape.head_dim},
                             at::TensorOptions(shape.dtype).device(at::kMeta));
  const AttentionKernel kernel = kernels::attention_kernel(q, q.size(2), config.training.document_mask);
  const bool no_cudnn = config.debug.deterministic || shares_sequences(config);
  return kernel == AttentionKernel::kCudnn && no_cudnn ? AttentionKernel::kFlash : kernel;
}

// Why cuDNN cannot be used for the sequences of training or validation; empty: it can. None: it serves
// neither.
std::optional<std::string> try_cudnn_on_sequences(const Shape& training, const config::JobConfig& config,
                                                  at::Device device) {
  std::set<std::pair<int64_t, int64_t>> batches = {{training.batch, training.length}};
  if (config.validation.enable)
    batches.emplace(config::microbatch_rows(config, config.validation.local_batch_size),
                    config.validation.seq_len);
  std::optional<std::string> why_not;
  for (const auto& [batch, length] : batches) {
    Shape shape = training;
    shape.batch = batch;
    shape.length = length;
    if (kernel_of(shape, config) != AttentionKernel::kCudnn) continue;
    why_not = try_cudnn(shape, device);
    if (why_not->empty()) continue;
    if (batch != training.batch || length != training.length)
      *why_not += fmt::format(" ({} of {} tokens)", counted(batch, "sequence"), length);
    break;
  }
  return why_not;
}

// Where cuDNN has failed on any rank, all use flash attention; with `required` that is an error. Collective.
void agree_on_cudnn(const std::string& why_not, const Shape& training, bool required,
                    parallel::Communicator& ranks) {
  const Tensor failed = at::zeros({1}, at::TensorOptions(at::kLong));  // the highest rank that failed, + 1
  if (!why_not.empty()) failed.fill_(ranks.rank() + 1);
  ranks.all_reduce_max(failed);
  const int64_t rank = failed.item<int64_t>() - 1;
  if (rank < 0) return;
  const std::string why = why_not.empty() ? fmt::format("it failed on rank {}, see its log", rank)
                                          : fmt::format("on rank {}: {}", ranks.rank(), why_not);
  if (required)
    throw_config(
        "model.attention = \"cudnn\": cuDNN's attention failed its trial on {}: {}; set model.attention = "
        "\"auto\" or \"flash\"",
        training.describe(), why);
  log_warning(
      "cuDNN's attention failed its trial on {}: {}. Every rank uses flash attention; model.attention = "
      "\"flash\" leaves the trial out",
      training.describe(), why);
  kernels::allow_cudnn_attention(false);
}

void choose_on_cpu(const models::ModelArgs& args, const config::JobConfig& config) {
  if (config.model.attention == config::AttentionChoice::kCudnn)
    throw_config(
        "model.attention = \"cudnn\": this job runs on a CPU, which has no cuDNN; set model.attention = "
        "\"auto\"");
  const kernels::cpu::Instructions instructions = kernels::cpu::chosen_instructions();
  if (processor::kX86 && !kernels::cpu::processor_has(kernels::cpu::Instructions::kAvx2))
    log_warning(
        "This processor has no AVX2 with FMA and BMI2: plain code computes in their place, several times "
        "slower");
  const bool flash = config.model.attention == config::AttentionChoice::kFlash;
  const bool documents = config.training.document_mask,
             libtorch = flash && !documents && !shares_sequences(config);
  kernels::use_libtorch_attention_on_cpu(libtorch);
  if (libtorch) {
    log_info("Attention: libtorch's flash attention for CPUs, as model.attention = \"flash\" asks");
    return;
  }
  if (flash)
    log_warning(
        "model.attention = \"flash\": with {} our kernel for CPUs runs in its place, because libtorch's {}",
        documents ? "training.document_mask" : "context parallelism",
        documents ? "keeps no documents apart" : "takes as many keys as queries");
  const Tensor head =
      at::empty({1, 1, 1, args.head_dim},
                at::TensorOptions(checkpointing::scalar_type(config.training.mixed_precision_param)));
  if (kernels::cpu::takes_attention(head))
    log_info("Attention: our kernel for CPUs, with instructions \"{}\"", kernels::cpu::text_of(instructions));
}

void choose_on_gpu(const Shape& training, const config::JobConfig& config, at::Device device,
                   parallel::Communicator& ranks) {
  const bool flash = config.model.attention == config::AttentionChoice::kFlash;
  const bool required = config.model.attention == config::AttentionChoice::kCudnn;
  kernels::allow_cudnn_attention(true);
  if (required && kernel_of(training, config) != AttentionKernel::kCudnn)
    throw_config(
        "model.attention = \"cudnn\": cuDNN serves bfloat16 without training.document_mask, heads of up to "
        "128, lengths that are multiples of 64, and neither debug.deterministic nor context parallelism; "
        "this "
        "job has {}, {}{}{}{}; set "
        "model.attention = \"auto\"",
        training.describe(), checkpoint::torch_name(config.training.mixed_precision_param),
        config.training.document_mask ? ", training.document_mask" : "",
        config.debug.deterministic ? ", debug.deterministic" : "",
        shares_sequences(config) ? ", parallelism.context_parallel_degree" : "");
  const parallel::PhaseGuard phase("trial of cuDNN's attention");
  if (flash || shares_sequences(config))
    kernels::allow_cudnn_attention(false);
  else if (const auto why_not = try_cudnn_on_sequences(training, config, device)) {
    c10::getDeviceAllocator(device.type())->emptyCache();  // the model's memory is what the step line reports
    agree_on_cudnn(*why_not, training, required, ranks);
  }
  switch (kernel_of(training, config)) {
    case AttentionKernel::kCudnn:
      log_info("Attention: cuDNN, tried on {}", training.describe());
      break;
    case AttentionKernel::kFlash:
      log_info("Attention: flash, for {}", training.describe());
      break;
    case AttentionKernel::kEfficient:
      log_info("Attention: memory-efficient, for {}", training.describe());
  }
}

}  // namespace

void choose_attention(const models::ModelArgs& args, const config::JobConfig& config, at::Device device,
                      parallel::Communicator& ranks) {
  if (device.is_cpu()) return choose_on_cpu(args, config);
  const int64_t tensor = config.parallelism.tensor_parallel_degree;  // ranks that divide the heads
  choose_on_gpu({args.n_heads / tensor, args.n_kv_heads / tensor, args.head_dim,
                 config::microbatch_rows(config, config.training.local_batch_size), config.training.seq_len,
                 checkpointing::scalar_type(config.training.mixed_precision_param)},
                config, device, ranks);
}

}  // namespace hyperion::trainer
