#include "trainer/build/attention_choice.h"

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

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
#include "base/exchange.h"
#include "base/log.h"
#include "base/processor.h"
#include "models/args/attention_heads.h"
#include "models/kernels/attention/attention.h"
#include "models/kernels/attention/cpu.h"
#include "models/layers/ops.h"
#include "models/parts/attention/ring_attention.h"
#include "parallel/job/phase.h"
#include "trainer/checkpointing/job_state.h"
#include "trainer/config/validate.h"

namespace hyperion::trainer {
namespace {

using at::Tensor;
using kernels::AttentionKernel;

constexpr double kLargestError = 0.05;  // of two bf16 kernels: about 0.005

// How the keys of other context parallel ranks come to attention.
enum class Context { kAlone, kGathered, kRing, kRingOfHalves };

Context context_of(const config::JobConfig& config) {
  if (config.parallelism.context_parallel_degree == 1) return Context::kAlone;
  if (!config::passes_keys_in_ring(config)) return Context::kGathered;
  return config.parallelism.context_parallel_load_balancer ? Context::kRingOfHalves : Context::kRing;
}

bool is_ring(Context context) {
  return context == Context::kRing || context == Context::kRingOfHalves;
}

// Tokens of a sequence of `length` that a rank's attention has: in a ring its part, else all.
int64_t tokens_of_rank(int64_t length, const config::JobConfig& config) {
  return is_ring(context_of(config)) ? length / config.parallelism.context_parallel_degree : length;
}

struct Shape {
  int64_t heads, kv_heads, head_dim, batch, length;  // tokens_of_rank()
  at::ScalarType dtype;
  Context context;

  std::string describe() const {
    return fmt::format("{} x {} heads of {}, {} of {} tokens{}", heads, kv_heads, head_dim,
                       counted(batch, "sequence"), length, is_ring(context) ? " in a ring" : "");
  }
};

// The middle one of three ranks that have the same keys and values: its blocks have all the shapes that a
// ring's have.
class RingOfEquals : public Exchange {
 public:
  int rank() const override { return 1; }
  int size() const override { return 3; }
  Pending start_transfers(std::vector<Transfer> transfers) override {
    transfers.at(1).tensor.copy_(transfers.at(0).tensor);
    return Pending([] {});  // has something to finish, so that what came is used
  }
  Pending start_all_gather_into(const Tensor&, const Tensor&) override { not_of_a_ring(); }
  Pending start_reduce_scatter_sum(const Tensor&, const Tensor&) override { not_of_a_ring(); }
  Pending start_all_reduce_sum(const Tensor&) override { not_of_a_ring(); }
  Pending start_all_reduce_max(const Tensor&) override { not_of_a_ring(); }
  Pending start_all_to_all(const Tensor&, const Tensor&, std::span<const int64_t>,
                           std::span<const int64_t>) override {
    not_of_a_ring();
  }

 private:
  [[noreturn]] static void not_of_a_ring() { throw_bug("the trial of a ring started a collective"); }
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
Results compute(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& grad, const Shape& shape) {
  const auto leaf = [](const Tensor& t) { return t.detach().requires_grad_(); };
  const Tensor leaf_q = leaf(q), leaf_k = leaf(k), leaf_v = leaf(v);
  RingOfEquals ring;
  const Tensor output = is_ring(shape.context)
                            ? models::ring_attention(leaf_q, leaf_k, leaf_v, ring,
                                                     shape.context == Context::kRingOfHalves, nullptr)
                            : models::ops::attention(leaf_q, leaf_k, leaf_v, {}, nullptr);
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
    cudnn = compute(q, k, v, grad, shape);
  } catch (const c10::OutOfMemoryError&) {
    throw;
  } catch (const c10::AcceleratorError&) {
    throw;  // the GPU is of no use to this process any more
  } catch (const c10::Error& error) {
    return brief(error);
  }
  kernels::allow_cudnn_attention(false);
  const Results flash = compute(q, k, v, grad, shape);
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

// The kernel that serves a shape, where cuDNN is allowed as far as it is now; of a ring all its blocks.
AttentionKernel kernel_of(const Shape& shape, const config::JobConfig& config) {
  const int64_t queries = shape.context == Context::kRingOfHalves ? shape.length / 2 : shape.length;
  const Tensor q = at::empty({shape.batch, shape.heads, queries, shape.head_dim},
                             at::TensorOptions(shape.dtype).device(at::kMeta));
  const AttentionKernel kernel = kernels::attention_kernel(q, queries, config.training.document_mask);
  // Where keys are gathered there are more of them than queries, which cuDNN does not take.
  const bool no_cudnn = config.debug.deterministic || shape.context == Context::kGathered;
  return kernel == AttentionKernel::kCudnn && no_cudnn ? AttentionKernel::kFlash : kernel;
}

// Of training, and of validation where it has others.
std::vector<Shape> attention_shapes(const Shape& training, const config::JobConfig& config) {
  std::vector<Shape> shapes = {training};
  if (!config.validation.enable) return shapes;
  Shape validation = training;
  validation.batch = config::microbatch_rows(config, config.validation.local_batch_size);
  validation.length = tokens_of_rank(config.validation.seq_len, config);
  if (validation.batch != training.batch || validation.length != training.length)
    shapes.push_back(validation);
  return shapes;
}

// The shape because of which cuDNN does not serve training; none: it does. In a ring it serves all blocks or
// none, those of validation too: what one block's forward leaves besides its results goes to every block's
// backward.
std::optional<Shape> not_for_cudnn(const Shape& training, const config::JobConfig& config) {
  const std::vector<Shape> shapes = attention_shapes(training, config);
  const auto last = is_ring(training.context) ? shapes.end() : shapes.begin() + 1;
  const auto found = std::find_if(shapes.begin(), last, [&](const Shape& shape) {
    return kernel_of(shape, config) != AttentionKernel::kCudnn;
  });
  return found == last ? std::nullopt : std::optional(*found);
}

// Which lengths of sequences cuDNN serves in a ring.
std::string lengths_of_ring(const config::JobConfig& config) {
  const bool halves = context_of(config) == Context::kRingOfHalves;
  return fmt::format("multiples of {}", kernels::gpu::kCudnnLength *
                                            config.parallelism.context_parallel_degree * (halves ? 2 : 1));
}

// Why cuDNN cannot be used for the sequences of training or validation; empty: it can. None: it serves
// neither.
std::optional<std::string> try_cudnn_on_sequences(const Shape& training, const config::JobConfig& config,
                                                  at::Device device) {
  std::optional<std::string> why_not;
  for (const Shape& shape : attention_shapes(training, config)) {
    if (kernel_of(shape, config) != AttentionKernel::kCudnn) continue;
    why_not = try_cudnn(shape, device);
    if (why_not->empty()) continue;
    if (shape.batch != training.batch || shape.length != training.length)
      *why_not += fmt::format(" ({} of {} tokens)", counted(shape.batch, "sequence"), shape.length);
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
             libtorch = flash && !documents && context_of(config) == Context::kAlone;
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
  const bool alone = training.context == Context::kAlone, ring = is_ring(training.context);
  const std::optional<Shape> not_served = not_for_cudnn(training, config);
  if (required && not_served)
    throw_config(
        "model.attention = \"cudnn\": cuDNN serves bfloat16 without training.document_mask, heads of up to "
        "128, lengths that are multiples of {}, and not debug.deterministic; with context parallelism only "
        "parallelism.context_parallel_rotate_method = \"alltoall\"{}; this job has {}, {}{}{}{}; set "
        "model.attention = \"auto\"",
        kernels::gpu::kCudnnLength,
        ring ? fmt::format(", here with training.seq_len and validation.seq_len that are {}",
                           lengths_of_ring(config))
             : "",
        not_served->describe(), checkpoint::torch_name(config.training.mixed_precision_param),
        config.training.document_mask ? ", training.document_mask" : "",
        config.debug.deterministic ? ", debug.deterministic" : "",
        alone ? "" : ", parallelism.context_parallel_degree");
  if (ring && not_served && !flash && kernel_of(training, config) == AttentionKernel::kCudnn)
    log_warning(
        "validation.seq_len = {}: cuDNN's attention serves all blocks of a ring or none, and not those of "
        "this length: every rank uses flash attention, in training too; choose one of the {}",
        config.validation.seq_len, lengths_of_ring(config));
  const parallel::PhaseGuard phase("trial of cuDNN's attention");
  if (flash || (!alone && not_served))
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
                 config::microbatch_rows(config, config.training.local_batch_size),
                 tokens_of_rank(config.training.seq_len, config),
                 checkpointing::scalar_type(config.training.mixed_precision_param), context_of(config)},
                config, device, ranks);
}

}  // namespace hyperion::trainer
