// A small training job for tests: the trainer's own model, optimizer and step, of a configuration that is
// made from a few options, on batches of numbers instead of text. Its dimensions divide by nothing.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <ostream>
#include <set>
#include <string>
#include <vector>

#include "models/flavors/registry.h"
#include "parallel/comm/process_group.h"
#include "tests/support/comm_ledger.h"
#include "trainer/build/model_and_optimizer.h"
#include "trainer/build/pipeline_setup.h"
#include "trainer/training_step.h"

namespace hyperion {

struct TinyJob {
  const char* model = "llama3";  // qwen3_moe, deepseek_v3, llama4 and gpt_oss have experts
  int64_t layers = 3;
  parallel::MeshConfig mesh{};
  at::ScalarType compute = at::kFloat;
  bool reshard_after_forward = true;
  models::ActivationCheckpoint checkpoint = models::ActivationCheckpoint::kNone;
  int64_t accumulation = 1;
  // With mesh.pp > 1.
  parallel::PipelineKind schedule = parallel::PipelineKind::k1F1B;
  std::string schedule_csv{};  // a file, instead of the schedule
  uint32_t mailbox_pieces = parallel::MailboxMemory::kPieces;
  bool reduce_once = false;  // per step, whatever the accumulation
  std::optional<int64_t> shard_alignment{};
  at::Device device = at::kCPU;
  bool offload = false;             // master weights, gradients and optimizer state on the host
  bool pack_weights = false;        // products of one input as one
  bool fake = false;                // no other ranks: a dry run of this one
  bool shared_memory = true;        // on a CPU; false: Gloo over sockets
  int64_t heads = 3, kv_heads = 1;  // tensor parallel ranks divide them; with FP8 there are 2 heads
  bool disable_loss_parallel = false;
  int64_t window = 0;  // in every second layer
  bool sinks = false;
  int64_t experts = 5, expert_hidden = 10;  // where the model has experts
  int64_t expert_slices = 1;
  // Of deepseek_v3.
  bool score_before_experts = false;
  bool balanced = false;  // choices are dealt round robin
  // With mesh.cp > 1 two chunks per rank, or one.
  bool head_tail = true;
  bool documents = false;  // several in a sequence
  bool ring = false;       // of keys and values; with documents they are gathered
  // On purpose wrong: gradients of what tensor parallel ranks all have are not added up over them.
  bool omit_replicated_sum = false;
  // FP8 linears: a recipe's name. The model's extents then are multiples of 16, the vocabulary apart.
  std::string float8{};
  bool float8_gather = false, float8_precompute = true, float8_emulate = true;
  // qwen3_moe with extents that are multiples of 32, the vocabulary apart, and its experts' FP8, emulated.
  bool fits_float8_experts = false;
  std::optional<float8::GroupedRecipe> float8_experts{};
  bool qkv_bias = false, output_bias = false;  // of attention
  bool muon = false;
  bool bf16_states = false;
  checkpoint::Dtype ns_dtype = checkpoint::Dtype::kFloat32;  // of Muon's iteration
  double z_loss = 0;                                         // training.z_loss
  models::RouterLossArgs router_losses{};
  int64_t frozen_from = -1;  // from 0: every second parameter from this one on is frozen
};

struct TinyStep {
  double loss, grad_norm;
  bool operator==(const TinyStep&) const = default;
  friend std::ostream& operator<<(std::ostream& out, const TinyStep& step) {
    return out << step.loss << " (norm " << step.grad_norm << ")";
  }
};

class TinyTraining {
 public:
  static constexpr int64_t kGlobalBatch = 12, kSeqLen = 8, kVocab = 17;

  TinyTraining(const TinyJob& job, const parallel::Environment& environment);
  // One step on global batch number `step`: the same sequences on every mesh.
  TinyStep step(int64_t step);

  parallel::ProcessGroups& groups() { return *groups_; }
  trainer::Stage& stage() { return *model_.stage; }
  trainer::ScheduleRunner& schedule() { return *model_.schedule; }
  const models::Transformer& model() const { return *model_.transformer; }
  const config::JobConfig& config() const { return config_; }
  auto model_linears() { return model_.transformer->linears(); }
  const optim::Optimizer& optimizer() const { return *model_.optimizer; }
  const trainer::Float8Setup& float8() const { return model_.float8; }
  // The gradients of step 0, not clipped: of each element that this rank holds and trains; parameters are
  // counted in unit order, elements in the whole tensor.
  struct GradientElement {
    int64_t parameter, element;
    float value;
    bool operator==(const GradientElement&) const = default;
  };
  std::vector<GradientElement> first_gradients();
  // The weights, and as further parameters the states, after updates by gradients that depend on parameter
  // and element alone, and so are the same on every mesh to the bit; each element as first_gradients() does.
  std::vector<GradientElement> state_after_updates(int updates);
  // What layers report of step 0, the same on every rank.
  std::vector<double> first_layer_metrics();
  // The metrics that the gradients of that step report, by tag; the same on every rank.
  std::map<std::string, double> reported_metrics(int64_t step);
  // What a logged step reports of the experts' rows since the last step; collective.
  std::map<std::string, double> expert_loads();
  // Throws where ranks that hold the same weights or states hold different ones.
  void audit_replicas();
  // What this rank has sent so far.
  CommLedger& ledger() { return ledger_; }
  // The dtypes of the groups' collectives so far: "fsdp/0 all_gather" -> Byte.
  const std::map<std::string, std::set<at::ScalarType>>& sent_dtypes() const { return sent_dtypes_; }
  // Of the unit's weights: 0 while they are sharded.
  static int64_t gathered_bytes(const parallel::ShardGroup& unit);

 private:
  // Calls visit(parameter, its index among all, Run) for every run of a trained parameter that this rank
  // holds.
  template <typename Visit>
  void for_each_trained_run(const Visit& visit);
  data::Batch batch(int64_t step, int64_t number) const;
  trainer::StepInput input(int64_t step) const;

  TinyJob job_;
  parallel::Mesh mesh_;
  int rank_;
  config::JobConfig config_;
  std::optional<trainer::Pipeline> pipeline_;
  std::unique_ptr<parallel::ProcessGroups> groups_;
  parallel::Communicator* tensor_;  // null: one rank
  std::unique_ptr<parallel::Communicator> tensor_without_sums_;
  CommLedger ledger_;
  std::map<std::string, std::set<at::ScalarType>> sent_dtypes_;
  trainer::ModelAndOptimizer model_;
  std::optional<trainer::TrainingStep> step_;
};

std::vector<TinyStep> train_tiny(const TinyJob& job, const parallel::Environment& environment, int64_t steps);

// The largest relative difference of two runs of equally many steps, losses and norms alike.
double largest_difference(const std::vector<TinyStep>& a, const std::vector<TinyStep>& b);

}  // namespace hyperion
