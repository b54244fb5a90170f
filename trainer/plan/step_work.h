// Counts what a steady step asks of one GPU: kernels by family with their bytes and FLOPs, and what its rank
// sends in collectives and exchanges. Bytes and FLOPs are counted as on a simulated GPU
// (docs/notes/step_budget.md): what must be moved at least. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "models/description.h"
#include "parallel/mesh.h"
#include "trainer/config/job_config.h"
#include "trainer/plan/job_size.h"
#include "trainer/plan/muon_work.h"

namespace hyperion::trainer {

// Family is a part of a step's time. The kernels of a step belong to those before kShardExchange; the others
// are waits, which step_time() adds (trainer/plan/step_time.h).
enum class Family : uint8_t {
  kProducts,
  kHeadProducts,
  kExpertProducts,
  kAttention,
  kNorms,
  kRope,
  kGatedActivation,
  kRouting,
  kResidual,
  kCopies,
  kFloat8Casts,
  kLoss,
  kPacking,  // of gathered weights and reduced gradients
  kOptimizer,
  kMuonProducts,  // Newton-Schulz iterations of the fullest owner
  kEmbedding,
  kShardExchange,     // of FSDP groups and replicas
  kTensorExchange,    // of tensor parallel groups
  kDispatch,          // rows on their way to experts of other ranks
  kSequenceExchange,  // keys and values that ranks of a sequence exchange
  kBubble,
  kTransfers,     // between pipeline stages
  kMuonExchange,  // matrices on their way to owners and back
  kNotModelled,   // a share of the sum (Card::overhead)
  kCount,
};
std::string_view name_of(Family family);

// The rate at which a kernel computes.
enum class Rate : uint8_t {
  kBf16,
  kFp32,
  kFp8,      // with fast accumulation, as forward
  kFp8Slow,  // without, as dgrad and wgrad
  kGrouped,  // bf16 products of experts
  kCudnnForward,
  kCudnnBackward,
  kFlashForward,
  kFlashBackward,
  kWideFlashForward,  // flash attention of heads wider than 128
  kWideFlashBackward,
  kEfficientForward,
  kEfficientBackward,
  kCount,
};

// Equal kernels of a step.
struct Kernels {
  Family family = Family::kProducts;
  double times = 1;
  double launches = 1, bytes = 0, flops = 0;  // of one
  Rate rate = Rate::kBf16;
  bool casts_to_float8 = false;  // writes columns of 64 bytes
};

// Equal collectives of a step, over rings.
struct Collectives {
  parallel::MeshDim group;
  double times = 1, sent = 0;  // bytes of this rank in one
  bool overlaps = true;        // with what the GPU computes
};

// SequenceExchange is the exchange of ranks that share sequences for attention, in one block and microbatch.
struct SequenceExchange {
  bool ring = false;
  double runs = 0;       // blocks times microbatches
  int exchanges = 1;     // hops of a ring, or parts of a rank's tokens that are gathered one after another
  double keys = 0;       // bytes that this rank sends of keys and values at once: a part, or one hop
  double gradients = 0;  // and of their gradients
  double forward_share = 0.5;  // of attention's time that the first part's queries take
};

// The exchange of rows with the experts of other ranks in a step. step_time() spreads `sent` evenly over the
// passes, each there and back.
struct ExpertDispatch {
  // Bytes that this rank sends by group: between nodes, then between the ranks of a node.
  std::vector<std::pair<parallel::MeshDim, double>> sent{};
  double forward_passes = 0, backward_passes = 0;
  // The shares of the products of a block's experts, for one microbatch, that run between the exchanges of a
  // pass.
  double forward_share = 0, backward_share = 0;
  int64_t slices = 1;
};

struct StepWork {
  std::vector<Kernels> kernels{};
  std::vector<Collectives> collectives{};
  ExpertDispatch dispatch{};
  std::optional<MuonWork> muon{};  // nullopt: Muon updates nothing
  std::optional<SequenceExchange> sequence_exchange{};
  double tokens = 0;    // of this GPU: those of its microbatches over the ranks that share them
  double transfer = 0;  // bytes of a transfer between two pipeline stages

  void add(Family family, double times, double launches, double bytes, double flops = 0,
           Rate rate = Rate::kBf16, bool casts = false);
  // Bytes that this rank sends in a step, by group.
  std::map<parallel::MeshDim, double> sent() const;
  double launches() const;  // of kernels
};

// The stages of a pipeline rank, and how often a step gathers the weights of each. Without a pipeline one
// stage has all units, and each microbatch gathers them.
struct RankStages {
  std::vector<ModelStage> stages{};
  std::vector<double> gathers{};  // of `stages`; 0: each microbatch gathers each unit, forward and backward
  bool reduces_once = false;      // gradients are reduced after the last microbatch only
};

StepWork step_work(const config::JobConfig& config, const models::ModelArgs& args,
                   const models::ModelDescription& model, const parallel::Mesh& mesh, const RankStages& rank);

}  // namespace hyperion::trainer
