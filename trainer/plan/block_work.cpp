#include "trainer/plan/block_work.h"

#include <algorithm>
#include <span>
#include <vector>

#include "parallel/pipeline/schedule.h"
#include "trainer/config/schema.h"

namespace hyperion::trainer {
namespace {

using config::RecomputeMode;
using parallel::MeshDim;

constexpr double kFp32 = 4;  // bytes

struct AttentionRates {
  Rate forward, backward;
};

// The rates of attention of these heads: cuDNN's kernels where they serve.
AttentionRates attention_rates(const models::AttentionWidths& widths, const BlockShape& block) {
  if (block.element == kFp32) return {Rate::kEfficientForward, Rate::kEfficientBackward};
  const bool cudnn = !block.config.training.document_mask && widths.window == 0 &&
                     block.config.model.attention != config::AttentionChoice::kFlash;
  if (cudnn) return {Rate::kCudnnForward, Rate::kCudnnBackward};
  if (widths.head_dim > 128) return {Rate::kWideFlashForward, Rate::kWideFlashBackward};
  return {Rate::kFlashForward, Rate::kFlashBackward};
}

class BlockCounter {
 public:
  BlockCounter(const BlockShape& block, RecomputeMode mode, double gradient_passes, double times,
               StepWork& work)
      : b_(block), mode_(mode), gradient_passes_(gradient_passes), times_(times), work_(work) {}

  void count() {
    count_attention();
    if (b_.block.feed_forward.experts)
      count_experts();
    else
      count_dense();
    // The norm before attention, that before the feed-forward with the sum of the stream, and the last sum.
    for (const double streams : {1, 2}) add(Family::kNorms, 1 + rows_, 1, 2 * streams * stream_);
    add(Family::kResidual, 1, 1, 3 * stream_);
    // Backward of a norm adds the gradients of all products that read it.
    for (const double inputs : {attention_inputs(), feed_forward_inputs()})
      add(Family::kNorms, 1, 2, (4 + inputs) * stream_);
    exchange_tensor_parallel();
  }

 private:
  void add(Family family, double times, double launches, double bytes, double flops = 0,
           Rate rate = Rate::kBf16, bool casts = false) const {
    work_.add(family, times * times_, launches, bytes, flops, rate, casts);
  }

  // --- products ---

  // A product in chunks is as many launches as ranks, each of which reads the weight.
  double reads_of_weight(const Product& product) const {
    return async_ && b_.tensor > 1 && product.shape->split ? b_.tensor : 1;
  }

  // Adds the products of this rank's `rows` rows with weights that read the same input: one in bf16, apart in
  // FP8. `repeats`: how many of them backward recomputes.
  void add_products(std::span<const Product> products, double rows, double repeats) const {
    if (products[0].float8) return add_float8_products(products, rows, repeats);
    double out = 0;
    for (const Product& product : products) out += product.out;
    const double in = products[0].in, reads = reads_of_weight(products[0]), flops = 2 * rows * in * out;
    const bool apart = repeats > 0 && repeats < 1;  // selective checkpointing computes w1 and w3 apart
    const double parts = apart ? static_cast<double>(products.size()) : 1;
    const double weight = reads * in * out, element = b_.element;
    add(Family::kProducts, 1, parts * reads, (parts * rows * in + weight + rows * out) * element, flops,
        rate_);
    add(Family::kProducts, repeats > 0 ? 1 : 0, reads,
        (rows * in + repeats * (weight + rows * out)) * element, repeats * flops, rate_);
    add(Family::kProducts, 1, reads, (rows * out + weight + rows * in) * element, flops, rate_);
    add(Family::kProducts, 1, 1, rows * (in + out) * element + in * out * kFp32 * gradient_passes_, flops,
        rate_);
  }

  void add_float8_products(std::span<const Product> products, double rows, double repeats) const {
    const double in = products[0].in, reads = reads_of_weight(products[0]), runs = 1 + repeats;
    const bool gathers_float8 = b_.config.quantize.linear.float8.enable_fsdp_float8_all_gather;
    // Tensor parallel ranks gather the inputs of column layers, and the gradients of row layers, in FP8.
    const bool column = b_.tensor > 1 && products[0].shape->split == models::kSplitByRows,
               row = b_.tensor > 1 && products[0].shape->split == models::kSplitByColumns;
    if (column) {
      add_gathered_cast(rows * in, runs);
      add(Family::kResidual, static_cast<double>(products.size()) - 1, reads, 3 * rows * in * b_.element);
    } else {
      const double casts = full_ ? 2 : runs;  // also of a product that is not repeated
      add_cast(rows * in, casts - 1, 1);
      add_cast(rows * in, 1, casts > runs ? 1 : 2);  // dgrad and wgrad read the other layout
    }
    for (const Product& product : products) {
      const double weight = product.in * product.out, flops = 2 * rows * weight;
      if (!gathers_float8) add_cast(weight, 2, 2);  // of what forward gathers, and backward
      add(Family::kProducts, runs, reads,
          rows * product.in + reads * weight + rows * product.out * b_.element, flops, Rate::kFp8);
      if (row)
        add_gathered_cast(rows * product.out, 1);
      else
        add_cast(rows * product.out, 1, 2);
      if (gathers_float8) add_transposition(weight);
      add(Family::kProducts, 1, reads, rows * product.out + reads * weight + rows * product.in * b_.element,
          flops, Rate::kFp8Slow);
      add(Family::kProducts, 1, 1, rows * (product.in + product.out) + weight * kFp32 * gradient_passes_,
          flops, Rate::kFp8Slow);
    }
  }

  // Finds the largest element in two launches, then casts to rows, columns or both.
  void add_cast(double elements, double times, double layouts) const {
    add(Family::kFloat8Casts, times, 2, elements * b_.element);
    add(Family::kFloat8Casts, times, 1, elements * (b_.element + layouts), 0, Rate::kBf16, true);
  }
  void add_transposition(double elements) const {
    add(Family::kFloat8Casts, 1, 1, 2 * elements, 0, Rate::kBf16, true);
  }
  // A rank casts its part, and transposes once what it gathers.
  void add_gathered_cast(double elements, double times) const {
    add_cast(elements / b_.tensor, times, 1);
    add_transposition(elements);
  }

  // --- attention ---

  double attention_inputs() const {  // products of the normed stream, whose gradients its backward adds
    if (b_.latent()) return 1;
    return b_.attention[0].float8 && b_.tensor == 1 ? 2 : 0;
  }
  double feed_forward_inputs() const {
    if (b_.block.feed_forward.experts) return b_.columns.empty() ? 1 : 2;
    return b_.columns[0].float8 && b_.tensor == 1 ? 1 : 0;
  }

  void count_attention() const {
    const std::span<const Product> products = std::span(b_.attention).first(b_.attention.size() - 1);
    if (b_.latent()) {
      for (size_t i = 0; i < products.size(); ++i) {
        // The selective mode recomputes every second product, in the order in which they run: wq_a, wkv_a,
        // wq_b, wkv_b (models/layers/activation_checkpoint.h).
        const bool swaps = b_.args.latent.q_lora_rank > 0 && (i == 1 || i == 2);
        const double repeats = selective_ ? static_cast<double>((swaps ? 3 - i : i) % 2) : full_;
        // Replicated projections are of this rank's part of the sequence.
        add_products(products.subspan(i, 1), products[i].shape->split ? b_.tokens : b_.own, repeats);
      }
      count_latent_rows();
    } else {
      add_products(products.first(3), b_.tokens, full_);
      count_rotation();
    }
    const double repeats = b_.repeats(mode_, BlockShape::kWoOutput);
    add_products(std::span(b_.attention).last(1), b_.tokens, selective_ ? repeats : full_);
    if (b_.tensor > 1 && b_.sequences > 1)  // rows of each sequence between those of the ranks
      add(Family::kCopies, selective_ ? 4 : 3 + full_, 1, 2 * b_.bytes[BlockShape::kAttended]);
    count_scores(*b_.block.attention.attention);
  }

  void count_scores(const models::AttentionWidths& widths) const {
    const double pairs = b_.tokens * (widths.mean_keys(static_cast<double>(b_.config.training.seq_len)) +
                                      0.5);  // the head-tail order gives every rank as many
    const double flops = 2 * pairs * b_.heads * static_cast<double>(widths.head_dim + widths.v_head_dim);
    const AttentionRates rates = attention_rates(widths, b_);
    const bool two_parts = b_.context > 1 && b_.config.parallelism.context_parallel_load_balancer.has_value();
    // Counted for the rank that comes last in a sequence, all of whose queries see keys of other ranks: a
    // call for each rank's keys in a ring, else of each part one with the keys before it and one with its
    // own.
    const double context = b_.context, parts = two_parts ? 2 : 1,
                 calls = b_.ring       ? context
                         : context > 1 ? 2 * parts
                                       : 1;
    const double passes = b_.ring ? context : context > 1 ? 2 : 1;  // over queries and outputs
    const double seen = b_.ring ? (context + 1) / 2 : context > 1 ? context + 1 - 1 / parts : 1;
    const double queries = b_.tokens * b_.queries, output = b_.tokens * b_.attended,
                 exchanged = 2 * b_.tokens * b_.keys;  // values are padded to the width of keys
    const double bytes =
        (passes * (queries + output) + seen * b_.tokens * (b_.keys + b_.values)) * b_.element;
    add(Family::kAttention, 1 + b_.repeats(mode_, BlockShape::kAttended), calls, bytes, flops, rates.forward);
    const double dgrad =
        2 * pairs * b_.heads * static_cast<double>(3 * widths.head_dim + 2 * widths.v_head_dim);
    add(Family::kAttention, 1, 3 * calls, 2 * bytes, dgrad, rates.backward);
    if (b_.args.attention.sinks)  // their gradients are sums over outputs in fp32
      add(Family::kAttention, 1, 5, output * 5 * kFp32);
    if (context == 1) return;
    // Merges the outputs of the calls, packs keys, adds their gradients and those of queries in fp32.
    const double sum = b_.element + 2 * kFp32, cast = b_.element + kFp32;
    if (b_.ring) {
      add(Family::kAttention, context - 1, 1, output * sum);
      add(Family::kCopies, context - 1, 1, queries * sum);
      add(Family::kCopies, context - 1, 1, exchanged * (b_.element / 2 + 2 * kFp32));
      add(Family::kCopies, 2, 4, (queries + output) * cast + exchanged * (2 * b_.element + cast));
    } else {
      add(Family::kAttention, parts, 1, output / parts * 3 * b_.element);
      add(Family::kCopies, 1, 15,
          (2 * output + 5 * queries + exchanged * (6 + 6.5 * context)) * b_.element +
              exchanged * (2 * context + 1) * kFp32);
    }
    if (b_.values < b_.keys)
      add(Family::kCopies, 2.5 + context / 2, 2, b_.tokens * (b_.keys + 2 * b_.values) * b_.element);
    add_sequence_exchange(exchanged, two_parts);
  }

  void add_sequence_exchange(double exchanged, bool two_parts) const {
    const int parts = two_parts ? 2 : 1;
    const double sent = exchanged * (b_.ring ? 1 : (b_.context - 1) / parts);  // elements at once
    const double runs = work_.sequence_exchange ? work_.sequence_exchange->runs : 0;
    work_.sequence_exchange =
        SequenceExchange{.ring = b_.ring,
                         .runs = runs + times_,
                         .exchanges = b_.ring ? static_cast<int>(b_.context) - 1 : parts,
                         .keys = sent * b_.element,
                         .gradients = sent * kFp32,
                         .forward_share = two_parts ? 0.25 : 1};
  }

  void count_rotation() const {
    const double rows = b_.tokens * b_.element, all = b_.queries + b_.keys + b_.values;
    // Values are copied along where one product makes all three.
    const bool apart = b_.attention[0].float8 && b_.tensor == 1;
    const double angles = static_cast<double>(b_.config.training.seq_len) / b_.context *
                          static_cast<double>(b_.block.attention.attention->head_dim) * kFp32;
    add(Family::kRope, 1 + rows_, 1, 2 * rows * (apart ? b_.queries + b_.keys : all) + angles);
    add(Family::kRope, 1, 1, 2 * rows * all + angles);
    if (!b_.normed_heads()) return;
    for (const double width : {b_.queries, b_.keys}) {
      add(Family::kCopies, 3 + rows_, 1, 2 * rows * width);  // to and from norms
      add(Family::kNorms, 1 + rows_, 1, 2 * rows * width);
      add(Family::kNorms, 1, 3, 3 * rows * width);
    }
    add(Family::kCopies, 1, 1, 2 * rows * all);
  }

  void count_latent_rows() const {
    const models::LatentArgs& latent = b_.args.latent;
    const double rows = b_.tokens * b_.element, part = b_.own * b_.element,
                 rank = static_cast<double>(latent.kv_lora_rank),
                 rotated = static_cast<double>(latent.qk_rope_head_dim);
    for (const double width : {rank, static_cast<double>(latent.q_lora_rank)}) {
      if (width == 0) continue;
      add(Family::kCopies, 1 + rows_, 1, 2 * part * width);
      add(Family::kNorms, 1 + rows_, 1, 2 * part * width);
      add(Family::kNorms, 1, 2, 3 * part * width);
    }
    // Builds heads of queries and keys from their parts, and takes their gradients apart.
    const double heads = rows * (3 * b_.queries + b_.attended + rotated) + b_.bytes[BlockShape::kExpanded];
    add(Family::kRope, 1 + rows_, 1, heads);
    add(Family::kRope, 1, 1, heads);
    add(Family::kCopies, 1, 2, 2 * part * (rank + rotated));  // the gradient of wkv_a's output from its parts
  }

  // --- feed-forward ---

  // The column layers, w1 and w3 of a gated feed-forward, their activation, and the row layer w2.
  void count_dense() const {
    const auto inputs = static_cast<double>(b_.columns.size());
    const size_t every_second = b_.columns.size() / 2;  // from the first
    const double half = static_cast<double>(every_second) / inputs;
    add_products(b_.columns, b_.tokens, selective_ ? half : full_);
    add_products(b_.rows, b_.tokens, 0);  // nothing reads a recomputed output
    add_activation(b_.tokens * b_.rows[0].in, inputs, 1);
  }
  void add_activation(double elements, double inputs, double launches) const {
    add(Family::kGatedActivation, 1 + rows_, launches, (inputs + 1) * elements * b_.element);
    add(Family::kGatedActivation, 1, launches, (2 * inputs + 1) * elements * b_.element);
  }

  void count_experts() const {
    const auto experts = static_cast<double>(b_.block.feed_forward.experts->experts);
    // Ranks that shard an expert have the tokens of all of them, and their rows.
    const double tokens = b_.own * b_.expert_tensor, rows = tokens * b_.chosen;
    count_routing(experts);
    if (!b_.columns.empty()) count_dense();
    count_rows(tokens, rows);

    // This rank's experts: a stack of matrices, of which ranks may shard the hidden width. Gradients of the
    // tokens' weights need the output.
    const double held = experts / b_.expert_ranks;
    count_stack(rows, b_.dim, 2 * b_.expert_hidden, held, b_.repeats(mode_, BlockShape::kExpertUp), 2);
    count_stack(rows, b_.expert_hidden, b_.dim, held, b_.repeats_of_results(mode_), 1);
    add_activation(rows * b_.expert_hidden, 2, slices_);
    // fp32 gradients of a stack are packed for the ranks that shard it.
    add(Family::kPacking, 1, 2, held * 3 * b_.dim * b_.expert_hidden * (b_.element + kFp32));
    if (b_.shards_experts) count_dispatch(tokens, rows);
  }

  // Brings the rows of tokens to experts, and their results and gradients back. Without an exchange the
  // products' own nodes gather rows, and again for wgrad (models/parts/experts/experts.cpp).
  void count_rows(double tokens, double rows) const {
    const double width = b_.dim * b_.element, sum = tokens * width;
    const double streams = b_.columns.empty() ? 1 : 2;  // routed and shared
    const double received = b_.bytes[BlockShape::kReceivedTokens], packed = b_.bytes[BlockShape::kPackedSums];
    const double gathered = (received > 0 ? received : sum) + rows * width,  // by the node of the experts
        summed = rows * width + (packed > 0 ? packed : sum);
    const bool weighs_hidden = b_.weighs_hidden_rows();
    add(Family::kRouting, 1 + (b_.shards_experts ? full_ : b_.repeats(mode_, BlockShape::kExpertUp)), 1,
        gathered);
    add(Family::kRouting, 1, 1, summed + (packed > 0 ? 0 : (streams - 1) * sum));
    // Gradients, and rows again for wgrad; then the gradients of weights.
    add(Family::kRouting, b_.shards_experts || weighs_hidden ? 2 : 3, 1, gathered);
    add(Family::kRouting, 1, 1, weighs_hidden ? 4 * rows * b_.expert_hidden * b_.element : 2 * rows * width);
    add(Family::kRouting, 1, 1, summed);  // of gradients of rows
    if (received == 0) return;
    const double choices = received / width * b_.chosen;  // of the tokens that this node receives
    add(Family::kRouting, 2 + full_, 1, sum + received);  // gathers tokens, and their gradients
    add(Family::kRouting, 1, 1, packed + streams * sum);  // sums of the nodes
    add(Family::kRouting, 1, 1, packed + sum);
    // The masks of the choices that have rows on a level, in numbers for each pair of a token's choices and
    // for each choice, as the trace of the simulated GPU counts them (docs/notes/plan.md).
    add(Family::kRouting, 1, 0, tokens * b_.chosen * (11 * b_.chosen + 20 * kFp32));
    add(Family::kRouting, 1, 0, choices * (43 + 8 * full_) * kFp32);
  }

  void count_dispatch(double tokens, double rows) const {
    const double width = b_.dim * b_.element;
    work_.dispatch.forward_passes += (1 + full_) * times_;
    work_.dispatch.backward_passes += times_;
    work_.dispatch.slices = b_.config.parallelism.expert_parallel_slices;
    // Gate, up and down, their dgrads and wgrads. Selective checkpointing computes gate and up again without
    // an exchange, full with one, and down too where results are weighed.
    const double products = 9 + 2 * b_.repeats(mode_, BlockShape::kExpertUp) + b_.repeats_of_results(mode_);
    const auto& parallelism = b_.config.parallelism;
    const bool defers_wgrad =
        parallelism.pipeline_parallel_degree > 1 &&
        parallel::splits_backward(parallel::pipeline_kind(parallelism.pipeline_parallel_schedule));
    work_.dispatch.forward_share = 3 / products;
    work_.dispatch.backward_share = (defers_wgrad ? 3 : 6) / products;
    const auto exchange = [&](size_t level, MeshDim group, double bytes, double ranks) {
      auto& levels = work_.dispatch.sent;
      if (levels.size() == level) levels.emplace_back(group, 0);
      levels[level].second += times_ * (ranks - 1) / ranks * bytes;
    };
    // Rows and results forward, their gradients backward, and what a recomputation exchanges again.
    const double bytes = (4 + full_ + b_.repeats_of_results(mode_)) * rows * width;
    add(Family::kRouting, 1, 3 * (slices_ - 1), 0);  // padding of received rows, ends of groups
    const double nodes = b_.expert_nodes;
    if (nodes == 1) return exchange(0, MeshDim::kEp, bytes, b_.expert_ranks);
    // A token for each node with chosen experts, with its weights and choices, and packed sums back; on the
    // node a row for each expert.
    const double received = b_.bytes[BlockShape::kReceivedTokens],
                 weights = received / width * b_.chosen * kFp32;
    // The choices, their weights and the gradients of these; forced balance needs no choices.
    const double numbers = (b_.args.experts.force_load_balance ? 2 : 3) + full_;
    exchange(0, MeshDim::kEpNodes,
             (2 + full_) * received + 2 * b_.bytes[BlockShape::kPackedSums] + numbers * weights, nodes);
    exchange(1, MeshDim::kEpInNode, bytes, b_.expert_ranks / nodes);
    constexpr double kMoreLaunches = 49, kOfSlice = 28;  // docs/notes/simulated_step.md
    add(Family::kRouting, 1, kMoreLaunches + kOfSlice * (slices_ - 1), 0);
  }

  void count_routing(double experts) const {
    const double weight = b_.dim * experts, input = b_.own * b_.dim, scores = b_.own * experts;
    const double flops = 2 * b_.own * weight, bytes = (input + weight + scores) * b_.element;
    add(Family::kProducts, 1 + (selective_ ? 1 : full_), 1, bytes, flops);
    add(Family::kProducts, 1, 1, bytes, flops);
    add(Family::kProducts, 1, 1, (input + scores) * b_.element + weight * kFp32, flops);
    // Scores in fp32, the choice, the order of rows and their weights.
    add(Family::kRouting, 1 + rows_, 3, scores * (b_.element + 4 * kFp32));
    add(Family::kRouting, 1, 5, b_.own * b_.chosen * 12 * kFp32);
    add(Family::kRouting, 1, 1, scores * 3 * kFp32);
  }

  // `gradients`: products that compute the gradient of the stack, each of a part of `out`.
  void count_stack(double rows, double in, double out, double held, double repeats, double gradients) const {
    const double stack = held * in * out, weight = slices_ * stack, flops = 2 * rows * in * out;
    const bool float8 = b_.casts_expert_rows();
    const Rate forward = float8                 ? Rate::kFp8
                         : rate_ == Rate::kFp32 ? Rate::kFp32
                                                : Rate::kGrouped,
               backward = float8 ? Rate::kFp8Slow : forward;
    const double operand = float8 ? 1 : b_.element, launches = 2 * slices_;
    if (float8) {
      add_cast(rows * in, 1 + repeats, 2);
      add_cast(rows * out, 1, 2);
      add_cast(weight, 1 + repeats, 2);
    }
    add(Family::kExpertProducts, 1 + repeats, launches,
        rows * (in * operand + out * b_.element) + weight * operand, flops, forward);
    add(Family::kExpertProducts, 1, launches, rows * (in * b_.element + out * operand) + weight * operand,
        flops, backward);
    add(Family::kExpertProducts, 1, launches * gradients,
        rows * (gradients * in + out) * operand + weight * b_.element, flops, backward);
    add(Family::kPacking, slices_ - 1, gradients, 3 * stack * b_.element);  // their sum
  }

  // All-gathers before column layers, reduce-scatters after row layers, and the reverse of their gradients.
  void exchange_tensor_parallel() const {
    const double tensor = b_.tensor;
    if (tensor == 1) return;
    const double sent = (tensor - 1) / tensor * b_.tokens * b_.dim * b_.element;
    // Attention, and a feed-forward or experts that the ranks shard.
    const double dense = 1 + !b_.columns.empty(),
                 layers = 1 + (!b_.columns.empty() || (b_.chosen > 0 && b_.expert_tensor > 1));
    const double again = full_ > 0 || selective_ ? layers : 0;
    const double gathered_share = b_.attention[0].float8 ? 1 / b_.element : 1;
    work_.collectives.push_back({MeshDim::kTp, times_ * (2 * layers + again), sent * gathered_share, async_});
    work_.collectives.push_back({MeshDim::kTp, times_ * (2 * layers + full_), sent, async_});
    if (async_) count_chunks(dense, 2 * dense + full_);
  }

  // The outputs of a product in chunks are copied together, or summed in fp32.
  void count_chunks(double layers, double sums) const {
    const double tensor = b_.tensor, chunk = b_.own * b_.dim;
    add(Family::kCopies, sums, tensor + 1,
        chunk * ((tensor - 1) * (b_.element + 2 * kFp32) + 2 * (b_.element + kFp32)));
    add(Family::kCopies, (full_ > 0 ? 3 : 2) * layers + selective_, 1, 2 * chunk * b_.element);
    const auto add_chunked = [&](const std::vector<Product>& products, double repeats) {
      for (const Product& product : products) {
        const bool column = product.shape->split == models::kSplitByRows;  // all-gathers its input forward
        if (!product.shape->split) continue;
        add(Family::kCopies, column ? 1 + repeats : 1, column ? tensor / 2 : tensor,
            2 * b_.tokens * (column ? product.out : product.in) * b_.element);
      }
    };
    add_chunked(b_.attention, full_);
    add_chunked(b_.columns, selective_ ? 0.5 : full_);
    add_chunked(b_.rows, 0);
  }

  const BlockShape& b_;
  const RecomputeMode mode_;
  const double gradient_passes_, times_;
  StepWork& work_;

  const bool selective_ = mode_ == RecomputeMode::kSelective,
             async_ = b_.config.parallelism.enable_async_tensor_parallel;
  const double full_ = mode_ == RecomputeMode::kFull ? 1 : 0;           // repeats of all products
  const double rows_ = b_.repeats(mode_, BlockShape::kNormedResidual);  // of norms, RoPE, SwiGLU
  const double stream_ = b_.bytes[BlockShape::kInput];
  // Slices of tokens, each of which the experts multiply alone.
  const double slices_ = b_.expert_ranks > 1
                             ? static_cast<double>(b_.config.parallelism.expert_parallel_slices)
                             : 1;
  const Rate rate_ = b_.element == kFp32 ? Rate::kFp32 : Rate::kBf16;
};

}  // namespace

void add_block_work(const BlockShape& block, config::RecomputeMode mode, double gradient_passes, double times,
                    StepWork& work) {
  BlockCounter(block, mode, gradient_passes, times, work).count();
}

}  // namespace hyperion::trainer
