#include "trainer/plan/block_work.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "parallel/pipeline/schedule.h"
#include "trainer/config/schema.h"
#include "trainer/config/validate.h"
#include "trainer/plan/product_work.h"

namespace hyperion::trainer {
namespace {

using config::RecomputeMode;
using parallel::MeshDim;

struct AttentionRates {
  Rate forward, backward;
};

// The rates of attention of these heads: cuDNN's kernels where they serve.
AttentionRates attention_rates(const models::AttentionWidths& widths, const BlockSetting& setting) {
  if (setting.element == sizeof(float)) return {Rate::kEfficientForward, Rate::kEfficientBackward};
  const bool documents = setting.config.training.document_mask;
  const bool cudnn =
      !documents && widths.window == 0 && setting.config.model.attention != config::AttentionChoice::kFlash;
  if (cudnn) return {Rate::kCudnnForward, Rate::kCudnnBackward};
  if (widths.head_dim > 128) return {Rate::kWideFlashForward, Rate::kWideFlashBackward};
  return {Rate::kFlashForward, Rate::kFlashBackward};
}

class BlockCounter : ProductCounter {
 public:
  BlockCounter(const models::BlockDescription& block, const BlockSetting& setting, double times,
               StepWork& work)
      : ProductCounter(setting, times, work),
        block_(block),
        attention_(products_of(block.attention.parameters)),
        feed_forward_(products_of(block.feed_forward.parameters)) {}

  void count() {
    count_attention();
    count_feed_forward();
    // The norm before attention, that before the feed-forward with the sum of the stream, and the last sum.
    forward_rows(Family::kNorms, 1, 1);
    recomputed_rows(Family::kNorms, 1, 1);
    forward_rows(Family::kNorms, 2, 2);
    recomputed_rows(Family::kNorms, 2, 2);
    forward_rows(Family::kResidual, 2, 1);
    // Backward of a norm adds the gradients of all products that read it.
    add_norm_backward(attention_inputs());
    add_norm_backward(feed_forward_inputs());
    exchange_tensor_parallel();
  }

 private:
  bool recomputes_rows() const { return mode() != RecomputeMode::kNone; }  // norms, RoPE, SwiGLU
  bool recomputes_attention() const { return mode() == RecomputeMode::kFull && setting_.context == 1; }
  double dim() const { return static_cast<double>(setting_.args.dim); }
  double sharded_rows() const { return tokens() / setting_.tensor; }  // of the stream: sequence parallel

  // Kernels that read and write rows of the stream, `read` and `written` of them per token.
  void forward_rows(Family family, double read, double written) const {
    add(family, 1, 1, (read + written) * sharded_rows() * dim() * element());
  }
  void recomputed_rows(Family family, double read, double written) const {
    if (recomputes_rows()) forward_rows(family, read, written);
  }
  void add_norm_backward(double inputs) const {
    add(Family::kNorms, 1, 2, (4 + inputs) * sharded_rows() * dim() * element());
  }

  // --- attention ---

  double attention_inputs() const {  // products of the normed stream, whose gradients its backward adds
    if (setting_.args.latent.is_present()) return 1;
    return attention_[0].float8 && setting_.tensor == 1 ? 2 : 0;
  }
  double feed_forward_inputs() const {
    const auto& experts = block_.feed_forward.experts;
    if (experts) return setting_.args.experts.num_shared_experts > 0 ? 2 : 1;
    return !feed_forward_.empty() && feed_forward_[0].float8 && setting_.tensor == 1 ? 1 : 0;
  }

  // Of every second product the selective mode recomputes one; see models/layers/activation_checkpoint.h.
  double repeats_of(int index) const {
    switch (mode()) {
      case RecomputeMode::kFull:
        return 1;
      case RecomputeMode::kSelective:
        return index % 2 == 1 ? 1 : 0;
      default:
        return 0;
    }
  }

  void count_attention() const {
    const models::AttentionWidths& widths = *block_.attention.attention;
    const double heads = static_cast<double>(widths.heads) / setting_.tensor,
                 kv_heads = static_cast<double>(widths.kv_heads) / setting_.tensor,
                 queries = heads * static_cast<double>(widths.head_dim),
                 keys = kv_heads * static_cast<double>(widths.head_dim),
                 values = kv_heads * static_cast<double>(widths.v_head_dim),
                 output = heads * static_cast<double>(widths.v_head_dim);
    const bool latent = setting_.args.latent.is_present();
    const double full = mode() == RecomputeMode::kFull ? 1 : 0;
    const Product& last = attention_.back();  // wo
    if (latent) {
      int index = 0;
      for (const Product& product : std::span(attention_).first(attention_.size() - 1)) {
        // Replicated projections are of this rank's part of the sequence.
        const double rows = product.shape->split ? tokens() : sharded_rows();
        add_products(std::span(&product, 1), rows, repeats_of(index++));
      }
      count_latent_rows(queries, output);
    } else {
      add_products(std::span(attention_).first(3), tokens(), full);
      count_rotation(queries, keys, values);
    }
    const bool saved = mode() == RecomputeMode::kSelective && setting_.tensor > 1;  // scattered, so not again
    add_products(std::span(&last, 1), tokens(), saved ? 0 : mode() == RecomputeMode::kSelective ? 1 : full);
    const bool several =
        config::microbatch_rows(setting_.config, setting_.config.training.local_batch_size) > 1;
    if (setting_.tensor > 1 && several)  // rows of each sequence between those of the ranks
      add(Family::kCopies, saved ? 4 : 3 + full, 1, 2 * tokens() * output * element());

    count_scores(widths, queries, keys, values, output);
  }

  void count_scores(const models::AttentionWidths& widths, double queries, double keys, double values,
                    double output) const {
    const double length = static_cast<double>(setting_.config.training.seq_len);
    const double pairs =
        tokens() * (widths.mean_keys(length) + 0.5);  // the head-tail order gives every rank as many
    const double heads = static_cast<double>(widths.heads) / setting_.tensor;
    const double flops = 2 * pairs * heads * static_cast<double>(widths.head_dim + widths.v_head_dim);
    const AttentionRates rates = attention_rates(widths, setting_);
    const bool ring =
        setting_.context > 1 && config::passes_keys_in_ring(setting_.config) && widths.window == 0;
    const bool two_parts =
        setting_.context > 1 && setting_.config.parallelism.context_parallel_load_balancer.has_value();
    // Counted for the rank that comes last in a sequence, all of whose queries see keys of other ranks: a
    // call for each rank's keys in a ring, else of each part one with the keys before it and one with its
    // own.
    const double context = setting_.context, parts = two_parts ? 2 : 1,
                 calls = ring          ? context
                         : context > 1 ? 2 * parts
                                       : 1;
    const double passes = ring ? context : context > 1 ? 2 : 1;  // over queries and outputs
    const double seen = ring ? (context + 1) / 2 : context > 1 ? context + 1 - 1 / parts : 1;
    const double exchanged = tokens() * 2 * keys;  // values are padded to the width of keys
    const double bytes = tokens() * (passes * (queries + output) + seen * (keys + values)) * element();
    add(Family::kAttention, 1 + recomputes_attention(), calls, bytes, flops, rates.forward);
    const double dgrad = 2 * pairs * heads * static_cast<double>(3 * widths.head_dim + 2 * widths.v_head_dim);
    add(Family::kAttention, 1, 3 * calls, 2 * bytes, dgrad, rates.backward);
    if (setting_.args.attention.sinks)  // their gradients are sums over outputs in fp32
      add(Family::kAttention, 1, 5, tokens() * output * 5 * kFp32);
    if (context == 1) return;
    // Merges the outputs of the calls, packs keys, adds their gradients and those of queries in fp32.
    const double sum = element() + 2 * kFp32, cast = element() + kFp32;
    if (ring) {
      add(Family::kAttention, context - 1, 1, tokens() * output * sum);
      add(Family::kCopies, context - 1, 1, tokens() * queries * sum);
      add(Family::kCopies, context - 1, 1, exchanged * (element() / 2 + 2 * kFp32));
      add(Family::kCopies, 2, 4, tokens() * (queries + output) * cast + exchanged * (2 * element() + cast));
    } else {
      add(Family::kAttention, parts, 1, tokens() * output / parts * 3 * element());
      add(Family::kCopies, 1, 15,
          (tokens() * (2 * output + 5 * queries) + exchanged * (6 + 6.5 * context)) * element() +
              exchanged * (2 * context + 1) * kFp32);
    }
    if (values < keys) add(Family::kCopies, 2.5 + context / 2, 2, tokens() * (keys + 2 * values) * element());
    add_sequence_exchange(exchanged, ring, two_parts);
  }

  void add_sequence_exchange(double exchanged, bool ring, bool two_parts) const {
    const double hop = exchanged * element() / (ring ? 1 : two_parts ? 2 : 1);
    const double peers = ring ? 1 : setting_.context - 1;
    SequenceExchange exchange{.ring = ring,
                              .runs = times_,
                              .exchanges = ring        ? static_cast<int>(setting_.context) - 1
                                           : two_parts ? 2
                                                       : 1,
                              .keys = peers * hop,
                              .gradients = peers * hop * kFp32 / element(),
                              .forward_share = two_parts ? 0.25 : 1};
    if (work_.sequence_exchange) exchange.runs += work_.sequence_exchange->runs;
    work_.sequence_exchange = exchange;
  }

  void count_rotation(double queries, double keys, double values) const {
    const double rows = tokens() * element();
    // Values are copied along where one product makes all three.
    const bool apart = attention_[0].float8 && setting_.tensor == 1;
    const double rotated = queries + keys + (apart ? 0 : values), all = queries + keys + values;
    const double repeats = recomputes_rows() ? 1 : 0;
    const double angles = static_cast<double>(setting_.config.training.seq_len) / setting_.context *
                          static_cast<double>(block_.attention.attention->head_dim) * kFp32;
    add(Family::kRope, 1 + repeats, 1, 2 * rows * rotated + angles);
    add(Family::kRope, 1, 1, 2 * rows * all + angles);
    if (!setting_.args.attention.qk_norm) return;
    for (const double width : {queries, keys}) {
      add(Family::kCopies, 3 + repeats, 1, 2 * rows * width);  // to and from norms
      add(Family::kNorms, 1 + repeats, 1, 2 * rows * width);
      add(Family::kNorms, 1, 3, 3 * rows * width);
    }
    add(Family::kCopies, 1, 1, 2 * rows * all);
  }

  void count_latent_rows(double queries, double output) const {
    const models::LatentArgs& latent = setting_.args.latent;
    const double rows = tokens() * element(), part = sharded_rows() * element(),
                 rank = static_cast<double>(latent.kv_lora_rank),
                 rotated = static_cast<double>(latent.qk_rope_head_dim), repeats = recomputes_rows() ? 1 : 0;
    const double heads = static_cast<double>(block_.attention.attention->heads) / setting_.tensor;
    const double keys_and_values = output + heads * static_cast<double>(latent.qk_nope_head_dim);
    for (const double width : {rank, static_cast<double>(latent.q_lora_rank)}) {
      if (width == 0) continue;
      add(Family::kCopies, 1 + repeats, 1, 2 * part * width);
      add(Family::kNorms, 1 + repeats, 1, 2 * part * width);
      add(Family::kNorms, 1, 2, 3 * part * width);
    }
    // Builds heads of queries and keys from their parts, and takes their gradients apart.
    const double made = 2 * queries + output;
    add(Family::kRope, 1 + repeats, 1, rows * (queries + keys_and_values + rotated + made));
    add(Family::kRope, 1, 1, rows * (queries + keys_and_values + rotated + made));
    add(Family::kCopies, 1, 2, 2 * part * (rank + rotated));  // the gradient of wkv_a's output from its parts
  }

  // --- feed-forward ---

  void count_feed_forward() const {
    if (!block_.feed_forward.experts)
      count_dense(feed_forward_);
    else
      count_experts();
  }

  // The column layers, w1 and w3 of a gated feed-forward, their activation, and the row layer w2.
  void count_dense(const std::vector<Product>& products) const {
    std::vector<Product> columns;
    const Product* row = nullptr;
    for (const Product& product : products)
      if (product.shape->split == models::kSplitByRows)
        columns.push_back(product);
      else
        row = &product;
    const auto inputs = static_cast<int>(columns.size());
    double repeated = mode() == RecomputeMode::kFull ? 1 : 0;
    if (mode() == RecomputeMode::kSelective) {  // every second product, counted from the first
      const int every_second = inputs / 2;
      repeated = every_second / static_cast<double>(inputs);
    }
    add_products(columns, tokens(), repeated);
    add_products(std::span(row, 1), tokens(), 0);  // nothing reads a recomputed output
    add_activation(tokens() * row->in, inputs);
  }
  void add_activation(double elements, int inputs, double launches = 1) const {
    add(Family::kGatedActivation, 1 + recomputes_rows(), launches, (inputs + 1) * elements * element());
    add(Family::kGatedActivation, 1, launches, (2 * inputs + 1) * elements * element());
  }

  void count_experts() const {
    const models::ExpertWidths& widths = *block_.feed_forward.experts;
    const auto experts = static_cast<double>(widths.experts), chosen = static_cast<double>(widths.top_k);
    // The tokens whose experts this rank chooses, and the rows that its experts get.
    const double own = tokens() / setting_.tensor, rows = own * chosen * setting_.expert_tensor;
    const double width = dim() * element(), full = mode() == RecomputeMode::kFull ? 1 : 0;
    count_routing(own, experts, chosen);
    std::vector<Product> shared;
    for (const Product& product : feed_forward_)
      if (!product.shape->name.ends_with("router.gate.weight")) shared.push_back(product);
    const double with_shared = shared.empty() ? 0 : 1;
    if (!shared.empty()) count_dense(shared);

    const double sent = own * chosen;
    add(Family::kRouting, 1 + full, 1, (own + sent) * width);               // gathers rows
    add(Family::kRouting, 1, 1, (sent + (1 + with_shared) * own) * width);  // sums a token's rows
    add(Family::kRouting, 2, 1, (own + sent) * width);                      // gathers gradients, twice
    add(Family::kRouting, 1, 1, 2 * sent * width);                          // gradients of weights
    add(Family::kRouting, 1, 1, (sent + own) * width);                      // sums gradients of rows

    // This rank's experts: a stack of matrices, of which ranks may shard the hidden width.
    const double hidden = static_cast<double>(widths.hidden) / setting_.expert_tensor,
                 held = experts / setting_.experts;
    // Selective checkpointing saves what experts exchange, and recomputes other products.
    const bool selective = mode() == RecomputeMode::kSelective, exchanged = setting_.experts > 1;
    count_stack(rows, dim(), 2 * hidden, held, full || selective ? 1 : 0, /*gradients=*/2);
    // Gradients of the tokens' weights need its output.
    count_stack(rows, hidden, dim(), held, full || (selective && !exchanged) ? 1 : 0, 1);
    add_activation(rows * hidden, 2, slices());
    // fp32 gradients of a stack are packed for the ranks that shard it.
    add(Family::kPacking, 1, 2, held * 3 * dim() * hidden * (element() + kFp32));
    if (setting_.experts == 1 && setting_.expert_tensor == 1) return;
    const double passes = (2 + full) * times_;
    work_.dispatch.forward_passes += (1 + full) * times_;
    work_.dispatch.backward_passes += times_;
    work_.dispatch.slices = setting_.config.parallelism.expert_parallel_slices;
    // Gate, up and down, their dgrads and wgrads. Selective checkpointing computes gate and up again without
    // an exchange, full all three with one.
    const double products = 9 + (selective ? 2 : 3 * full);
    work_.dispatch.forward_share = 3 / products;
    work_.dispatch.backward_share = (splits_backward() ? 3 : 6) / products;
    const auto dispatch = [&](MeshDim group, double rows_sent, double ranks) {
      const double sent_bytes = 2 * passes * (ranks - 1) / ranks * rows_sent * width;
      for (auto& [known, bytes] : work_.dispatch.sent)
        if (known == group) {
          bytes += sent_bytes;
          return;
        }
      work_.dispatch.sent.emplace_back(group, sent_bytes);
    };
    add(Family::kRouting, 1, 3 * (slices() - 1), 0);  // padding of received rows, ends of groups
    const double nodes = setting_.expert_nodes;
    if (nodes == 1) return dispatch(MeshDim::kEp, sent, setting_.experts);
    // A row for each node with chosen experts, and on it for each expert.
    dispatch(MeshDim::kEpNodes, own * nodes_of_token(setting_.args, nodes), nodes);
    dispatch(MeshDim::kEpInNode, sent, setting_.experts / nodes);
    constexpr double kMoreLaunches = 49, kOfSlice = 28;  // docs/notes/simulated_step.md
    add(Family::kRouting, 1, kMoreLaunches + kOfSlice * (slices() - 1), 0);
  }

  void count_routing(double own, double experts, double chosen) const {
    const double weight = dim() * experts, repeats = recomputes_rows() ? 1 : 0;
    const double flops = 2 * own * weight;
    add(Family::kProducts, 1 + repeats, 1, (own * dim() + weight + own * experts) * element(), flops);
    add(Family::kProducts, 1, 1, (own * experts + weight + own * dim()) * element(), flops);
    add(Family::kProducts, 1, 1, own * (dim() + experts) * element() + weight * kFp32, flops);
    // Scores in fp32, the choice, the order of rows and their weights.
    add(Family::kRouting, 1 + repeats, 3, own * experts * (element() + 4 * kFp32));
    add(Family::kRouting, 1, 5, own * chosen * 12 * kFp32);
    add(Family::kRouting, 1, 1, own * experts * 3 * kFp32);
  }

  // Returns whether a pipeline's schedule defers wgrads.
  bool splits_backward() const {
    const auto& parallelism = setting_.config.parallelism;
    return parallelism.pipeline_parallel_degree > 1 &&
           parallel::splits_backward(parallel::pipeline_kind(parallelism.pipeline_parallel_schedule));
  }

  // Slices of tokens, each of which the experts multiply alone.
  double slices() const {
    const int64_t slices = setting_.config.parallelism.expert_parallel_slices;
    return setting_.experts > 1 ? static_cast<double>(slices) : 1;
  }

  // `gradients`: products that compute the gradient of the stack, each of a part of `out`.
  void count_stack(double rows, double in, double out, double held, double repeats, double gradients) const {
    const double stack = held * in * out, weight = slices() * stack, flops = 2 * rows * in * out;
    const bool float8 = config::kGroupedFloat8.on(setting_.config) || config::kGroupedMx.on(setting_.config);
    const Rate rate = float8 ? Rate::kFp8 : setting_.element == kFp32 ? Rate::kFp32 : Rate::kGrouped;
    const double operand = float8 ? 1 : element();
    if (float8) {
      add_cast(rows * in, 1 + repeats, 2);
      add_cast(rows * out, 1, 2);
      add_cast(weight, 1 + repeats, 2);
    }
    const double launches = 2 * slices();
    add(Family::kExpertProducts, 1 + repeats, launches,
        rows * (in * operand + out * element()) + weight * operand, flops, rate);
    add(Family::kExpertProducts, 1, launches, rows * (in * element() + out * operand) + weight * operand,
        flops, float8 ? Rate::kFp8Slow : rate);
    add(Family::kExpertProducts, 1, launches * gradients,
        rows * (gradients * in + out) * operand + weight * element(), flops, float8 ? Rate::kFp8Slow : rate);
    if (slices() > 1) add(Family::kPacking, slices() - 1, gradients, 3 * stack * element());  // their sum
  }

  // All-gathers before column layers, reduce-scatters after row layers, and the reverse of their gradients.
  void exchange_tensor_parallel() const {
    const double tensor = setting_.tensor;
    if (tensor == 1) return;
    const bool full = mode() == RecomputeMode::kFull, selective = mode() == RecomputeMode::kSelective;
    const double sent = (tensor - 1) / tensor * tokens() * dim() * element();
    const bool dense = !block_.feed_forward.experts || setting_.args.experts.num_shared_experts > 0;
    const double layers = 1 + dense;  // attention, and a feed-forward that all tensor parallel ranks share
    const double again = full || selective ? layers : 0;
    const bool overlaps = setting_.config.parallelism.enable_async_tensor_parallel;
    const double gathers = 2 * layers + again, gathered_share = attention_[0].float8 ? 1 / element() : 1;
    work_.collectives.push_back({MeshDim::kTp, times_ * gathers, sent * gathered_share, overlaps});
    work_.collectives.push_back({MeshDim::kTp, times_ * (2 * layers + full), sent, overlaps});
    if (overlaps) count_chunks(layers, 2 * layers + full);
  }

  // The outputs of a product in chunks are copied together, or summed in fp32.
  void count_chunks(double layers, double sums) const {
    const double tensor = setting_.tensor, chunk = tokens() / tensor * dim();
    const bool full = mode() == RecomputeMode::kFull, selective = mode() == RecomputeMode::kSelective;
    add(Family::kCopies, sums, tensor + 1,
        chunk * ((tensor - 1) * (element() + 2 * kFp32) + 2 * (element() + kFp32)));
    add(Family::kCopies, (full ? 3 : 2) * layers + selective, 1, 2 * chunk * element());
    const auto add_chunked = [&](const std::vector<Product>& products, double repeats) {
      for (const Product& product : products) {
        const bool column = product.shape->split == models::kSplitByRows;  // all-gathers its input forward
        if (!product.shape->split) continue;
        add(Family::kCopies, column ? 1 + repeats : 1, column ? tensor / 2 : tensor,
            2 * tokens() * (column ? product.out : product.in) * element());
      }
    };
    add_chunked(attention_, full);
    add_chunked(feed_forward_, full ? 1 : selective ? 0.5 : 0);
  }

  const models::BlockDescription& block_;
  const std::vector<Product> attention_, feed_forward_;
};

}  // namespace

bool multiplies_in_float8(const models::ParameterShape& shape, const config::JobConfig& config,
                          std::string_view module) {
  if (!config::kFloat8.on(config) && !config::kMx.on(config)) return false;
  const auto& filters = config::kFloat8.on(config) ? config.quantize.linear.float8.filter_fqns
                                                   : config.quantize.linear.mx.filter_fqns;
  const auto named = [&](const std::string& filter) { return module.find(filter) != module.npos; };
  constexpr int64_t kTile = 16;
  return std::ranges::none_of(filters, named) &&
         std::ranges::all_of(shape.dims, [](int64_t extent) { return extent % kTile == 0; });
}

double nodes_of_token(const models::ModelArgs& args, double nodes) {
  const auto chosen = static_cast<double>(args.experts.top_k),
             groups = static_cast<double>(args.experts.limited_groups);
  // A router with groups chooses from each group that it allows, and groups are on nodes in order.
  return groups > 0
             ? std::clamp(nodes * groups / static_cast<double>(args.experts.expert_groups), 1.0, chosen)
             : nodes * (1 - std::pow(1 - 1 / nodes, chosen));
}

void add_block_work(const models::BlockDescription& block, const BlockSetting& setting, double times,
                    StepWork& work) {
  BlockCounter(block, setting, times, work).count();
}

}  // namespace hyperion::trainer
