#include "trainer/build/attention_choice.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

#include <fmt/format.h>

#include <ATen/ops/zeros.h>
#include <c10/core/CachingDeviceAllocator.h>

#include "base/counted.h"
#include "base/error.h"
#include "base/log.h"
#include "base/processor.h"
#include "models/args/attention_heads.h"
#include "models/args/sequence_parts.h"
#include "models/description.h"
#include "models/kernels/attention/attention.h"
#include "models/kernels/attention/cpu.h"
#include "parallel/job/phase.h"
#include "trainer/build/attention_trial.h"
#include "trainer/checkpointing/job_state.h"
#include "trainer/config/validate.h"

namespace hyperion::trainer {
namespace {

using at::Tensor;
using kernels::AttentionKernel, kernels::MaskKind;

// Says how attention gets the keys of other context parallel ranks.
enum class Context { kAlone, kGathered, kRing, kRingOfHalves };

Context context_of(const config::JobConfig& config) {
  if (config.parallelism.context_parallel_degree == 1) return Context::kAlone;
  if (!config::passes_keys_in_ring(config)) return Context::kGathered;
  return config.parallelism.context_parallel_load_balancer ? Context::kRingOfHalves : Context::kRing;
}

bool is_ring(Context context) {
  return context == Context::kRing || context == Context::kRingOfHalves;
}

// Into how many parts context parallel ranks divide a sequence.
int64_t parts_of_sequence(const config::JobConfig& config) {
  const auto& degrees = config.parallelism;
  return models::length_divisor(degrees.context_parallel_degree,
                                degrees.context_parallel_load_balancer.has_value(),
                                /*tensor=*/1);
}

// Attention of one block of the model.
struct Shape {
  int64_t heads, kv_heads, head_dim, v_head_dim;
  int64_t batch, length;  // sequences, and the keys of each that a rank attends to at once
  int64_t queries;        // of a call to `length` keys
  at::ScalarType dtype;
  MaskKind mask;
  int64_t window;
  Context context;

  std::string describe() const {
    return fmt::format("{} x {} heads of {}{}, {} of {} tokens{}{}", heads, kv_heads, head_dim,
                       v_head_dim == head_dim ? "" : fmt::format(" with values of {}", v_head_dim),
                       counted(batch, "sequence"), length, is_ring(context) ? " in a ring" : "",
                       window > 0 ? fmt::format(", a window of {}", window) : "");
  }
};

// Returns the kernel calls of a step: one, with gathered keys that to the most keys, or in a ring three, for
// the keys of this rank, of ranks before it and of ranks after it (ring_steps() in
// models/parts/attention/ring_attention.h).
std::vector<AttentionTrial> calls_of(const Shape& shape) {
  const auto call = [&](int64_t queries, int64_t keys, MaskKind mask) {
    return AttentionTrial{shape.batch,
                          shape.heads,
                          shape.kv_heads,
                          {shape.dtype, shape.head_dim, shape.v_head_dim, queries, keys, mask, shape.window}};
  };
  const int64_t all = shape.length, half = all / 2;
  std::vector<AttentionTrial> calls = {call(shape.queries, all, shape.mask)};
  if (shape.context == Context::kRing) calls.push_back(call(all, all, MaskKind::kAllKeys));
  if (shape.context == Context::kRingOfHalves) {
    calls.push_back(call(all, half, MaskKind::kAllKeys));
    calls.push_back(call(half, all, MaskKind::kAllKeys));
  }
  return calls;
}

// The kernel that serves a shape, where cuDNN is allowed as far as it is now. In a ring cuDNN serves all
// calls or none: what one call's forward leaves besides its results goes to every call's backward.
AttentionKernel kernel_of(const Shape& shape, const config::JobConfig& config, at::Device device) {
  for (const AttentionTrial& trial : calls_of(shape)) {
    const AttentionKernel kernel = kernels::attention_kernel(trial.call, device);
    if (kernel != AttentionKernel::kCudnn) return kernel;
  }
  return config.debug.deterministic ? AttentionKernel::kFlash : AttentionKernel::kCudnn;
}

// Attention has the same widths in all blocks. cuDNN is tried for the blocks without a window, if there are
// any: the others have none of its kernels.
models::AttentionWidths widths_to_choose_by(const models::ModelDescription& model) {
  for (const models::BlockDescription& kind : model.kinds)
    if (kind.attention.attention->window == 0) return *kind.attention.attention;
  return *model.kinds.front().attention.attention;
}

Shape shape_of(const models::AttentionWidths& widths, const config::JobConfig& config, at::Device device,
               int64_t batch_size, int64_t seq_len) {
  const auto& degrees = config.parallelism;
  const int64_t ranks = degrees.tensor_parallel_degree;  // that divide the heads
  Context context = context_of(config);
  if (widths.window > 0 && is_ring(context)) context = Context::kGathered;
  const int64_t length = is_ring(context) ? seq_len / degrees.context_parallel_degree : seq_len;
  Shape shape = {.heads = widths.heads / ranks,
                 .kv_heads = widths.kv_heads / ranks,
                 .head_dim = widths.head_dim,
                 .v_head_dim = widths.v_head_dim,
                 .batch = config::microbatch_rows(config, batch_size),
                 .length = length,
                 .queries = context == Context::kGathered ? seq_len / parts_of_sequence(config) : length,
                 .dtype = checkpointing::scalar_type(config.training.mixed_precision_param),
                 .mask = config.training.document_mask ? MaskKind::kDocuments : MaskKind::kCausal,
                 .window = widths.window,
                 .context = context};
  // Other kernels are given values that are padded to the width of keys.
  if (kernel_of(shape, config, device) != AttentionKernel::kCudnn) shape.v_head_dim = shape.head_dim;
  return shape;
}

// Returns the shapes of training, and those of validation if they differ.
std::vector<Shape> attention_shapes(const models::ModelArgs& args, const config::JobConfig& config,
                                    at::Device device) {
  const auto& training = config.training;
  const auto& validation = config.validation;
  const models::AttentionWidths widths = widths_to_choose_by(models::describe_model(args));
  std::vector<Shape> shapes = {shape_of(widths, config, device, training.local_batch_size, training.seq_len)};
  if (!validation.enable) return shapes;
  const Shape other = shape_of(widths, config, device, validation.local_batch_size, validation.seq_len);
  if (other.batch != shapes[0].batch || other.length != shapes[0].length) shapes.push_back(other);
  return shapes;
}

// Returns the lengths of sequences that cuDNN serves with context parallelism, as text.
std::string lengths_of_parts(const config::JobConfig& config) {
  return fmt::format("multiples of {}", kernels::gpu::kCudnnLength * parts_of_sequence(config));
}

// Why cuDNN cannot be used for one of `shapes`; empty: it can.
std::string try_cudnn_on(const std::vector<Shape>& shapes, const Shape& training, at::Device device) {
  for (const Shape& shape : shapes) {
    for (const AttentionTrial& trial : calls_of(shape)) {
      const std::string why_not = try_cudnn(trial, device);
      if (why_not.empty()) continue;
      const bool of_training = shape.batch == training.batch && shape.length == training.length;
      return of_training ? why_not
                         : fmt::format("{} ({} of {} tokens)", why_not, counted(shape.batch, "sequence"),
                                       shape.length);
    }
  }
  return "";
}

// Makes every rank use flash attention if cuDNN has failed on any rank; with `required` that is an error.
// Collective.
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

// Refuses the job if the GPU has no kernel for the layers with a window, or none that serves sinks.
void require_kernels_of_all_layers(const models::ModelArgs& args, const config::JobConfig& config,
                                   at::Device device) {
  const auto& training = config.training;
  for (const models::BlockDescription& kind : models::describe_model(args).kinds) {
    const Shape shape =
        shape_of(*kind.attention.attention, config, device, training.local_batch_size, training.seq_len);
    if (kernel_of(shape, config, device) == AttentionKernel::kEfficient && args.attention.sinks &&
        shape.mask == MaskKind::kDocuments)
      throw_config(
          "training.document_mask: attention with sinks and documents has a GPU kernel for bfloat16 and "
          "heads of up to {} only, this is {} and {}; set training.mixed_precision_param = \"bfloat16\"",
          kernels::gpu::kLargestFlashHead, checkpoint::torch_name(training.mixed_precision_param),
          shape.head_dim);
  }
}

void log_windows(const models::ModelArgs& args, const config::JobConfig& config) {
  const int64_t windows = models::describe_model(args).windows();
  if (windows == 0) return;
  log_info("Attention: a window of {} keys in {} of {} layers{}", args.attention.window, windows,
           args.n_layers,
           is_ring(context_of(config))
               ? "; these gather keys and values, because the steps of a ring serve no window"
               : "");
}

void choose_on_cpu(const models::ModelArgs& args, const config::JobConfig& config, at::Device device) {
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
  const Shape shape = attention_shapes(args, config, device).front();
  const kernels::AttentionCall call = calls_of(shape).front().call;
  const bool libtorch =
      flash && shape.context == Context::kAlone && kernels::serves(AttentionKernel::kLibtorchCpu, call);
  kernels::use_libtorch_attention_on_cpu(libtorch);
  if (libtorch) {
    log_info("Attention: libtorch's flash attention for CPUs, as model.attention = \"flash\" asks");
    return;
  }
  if (flash) {
    const bool documents = shape.mask == MaskKind::kDocuments, windowed = !documents && shape.window > 0;
    log_warning(
        "model.attention = \"flash\": with {} our kernel for CPUs runs in its place, because libtorch's {}",
        documents  ? "training.document_mask"
        : windowed ? "a window in each layer"
                   : "context parallelism",
        documents  ? "keeps no documents apart"
        : windowed ? "has no window"
                   : "takes as many keys as queries");
  }
  if (kernels::serves(AttentionKernel::kCpu, call))
    log_info("Attention: our kernel for CPUs, with instructions \"{}\"", kernels::cpu::text_of(instructions));
}

void choose_on_gpu(const models::ModelArgs& args, const config::JobConfig& config, at::Device device,
                   parallel::Communicator& ranks) {
  const bool flash = config.model.attention == config::AttentionChoice::kFlash;
  const bool required = config.model.attention == config::AttentionChoice::kCudnn;
  kernels::allow_cudnn_attention(true);
  const std::vector<Shape> shapes = attention_shapes(args, config, device);
  const Shape& training = shapes.front();
  const bool alone = training.context == Context::kAlone, ring = is_ring(training.context);
  const auto served = [&](const Shape& shape) {
    return kernel_of(shape, config, device) == AttentionKernel::kCudnn;
  };

  // A shape that must be served and is not: training's, in a ring validation's too.
  const auto last = ring ? shapes.end() : shapes.begin() + 1;
  const auto not_served = std::find_if_not(shapes.begin(), last, served);
  if (required && not_served != last)
    throw_config(
        "model.attention = \"cudnn\": cuDNN serves bfloat16 without training.document_mask or windows, heads "
        "of up to "
        "128 or of 192 with values of 128, training.seq_len{} among the {}, and not "
        "debug.deterministic; this job has {}, {}{}{}{}; set model.attention = \"auto\"",
        ring ? " and validation.seq_len" : "", lengths_of_parts(config), not_served->describe(),
        checkpoint::torch_name(config.training.mixed_precision_param),
        config.training.document_mask ? ", training.document_mask" : "",
        config.debug.deterministic ? ", debug.deterministic" : "",
        alone ? "" : ", parallelism.context_parallel_degree");
  if (ring && not_served != last && !flash && served(training))
    log_warning(
        "validation.seq_len = {}: cuDNN's attention serves all blocks of a ring or none, and not those of "
        "this length: every rank uses flash attention, in training too; choose one of the {}",
        config.validation.seq_len, lengths_of_parts(config));

  std::vector<Shape> by_cudnn;
  if (!flash && (!ring || not_served == last))
    std::ranges::copy_if(shapes, std::back_inserter(by_cudnn), served);
  if (by_cudnn.empty()) {
    kernels::allow_cudnn_attention(false);
  } else {
    const parallel::PhaseGuard phase("trial of cuDNN's attention");
    const std::string why_not = try_cudnn_on(by_cudnn, training, device);
    c10::getDeviceAllocator(device.type())->emptyCache();  // the model's memory is what the step line reports
    agree_on_cudnn(why_not, training, required, ranks);
  }
  require_kernels_of_all_layers(args, config, device);
  const AttentionKernel kernel = kernel_of(training, config, device);
  log_info("Attention: {} {}",
           kernel == AttentionKernel::kCudnn   ? "cuDNN, tried on"
           : kernel == AttentionKernel::kFlash ? "flash, for"
                                               : "memory-efficient, for",
           training.describe());
}

}  // namespace

void choose_attention(const models::ModelArgs& args, const config::JobConfig& config, at::Device device,
                      parallel::Communicator& ranks) {
  if (device.is_cpu())
    choose_on_cpu(args, config, device);
  else
    choose_on_gpu(args, config, device, ranks);
  log_windows(args, config);
}

}  // namespace hyperion::trainer
