#include "trainer/plan/muon_work.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <string>
#include <utility>

#include "base/parameter_description.h"
#include "parallel/placement.h"
#include "trainer/config/schema.h"
#include "trainer/optim/exchange_layout.h"
#include "trainer/optim/matrix_plan.h"
#include "trainer/optim/newton_schulz.h"
#include "trainer/optim/parameter_groups.h"

namespace hyperion::trainer {
namespace {

using optim::ExchangeLayout, optim::ExchangeRank, optim::Matrix;
using parallel::Mesh, parallel::MeshDim;

// The matrices that the ranks of two groups share.
struct SharedMatrices {
  MeshDim shard, tensor;
  std::vector<Matrix> matrices{};
  std::vector<double> loads{};  // FLOPs, [shard rank][tensor parallel rank]
};

// The owners as a rank plans them.
class OwnersPlan {
 public:
  OwnersPlan(const config::JobConfig& config, const models::ModelDescription& model, const Mesh& mesh,
             std::span<const ModelStage> stages, int rank)
      : options_(config.optimizer), mesh_(mesh), rank_(rank) {
    for (const ModelStage& stage : stages)
      for (int64_t layer = stage.first_block; layer < stage.end_block; ++layer)
        model.block(layer).for_each_parameter([&](const models::ParameterShape& shape) {
          add(shape, "layers." + std::to_string(layer) + ".");
        });
    for (SharedMatrices* some : {&dense_, &experts_}) {
      const int shards = mesh.degree(some->shard), tensors = mesh.degree(some->tensor);
      optim::choose_owners(some->matrices, shards, options_.muon.ns_steps);
      some->loads = optim::loads_of_owners(some->matrices, shards, tensors, options_.muon.ns_steps);
    }
  }

  bool empty() const { return dense_.matrices.empty() && experts_.matrices.empty(); }

  double flops_of(int rank) const {
    double flops = 0;
    for (const SharedMatrices* some : {&dense_, &experts_}) {
      if (some->matrices.empty()) continue;
      const int owner = mesh_.coordinate(rank, some->shard) * mesh_.degree(some->tensor) +
                        mesh_.coordinate(rank, some->tensor);
      flops += some->loads[static_cast<size_t>(owner)];
    }
    return flops;
  }
  // Returns the ranks that have the same stages, of one replica: the first ones.
  int ranks() const { return mesh_.degree(MeshDim::kFsdp) * mesh_.degree(MeshDim::kTp); }
  int fullest() const {
    int best = 0;
    for (int rank = 1; rank < ranks(); ++rank)
      if (flops_of(rank) > flops_of(best)) best = rank;
    return best;
  }

  MuonWork work() const {
    MuonWork work{.rank = rank_, .flops = flops_of(rank_)};
    for (int rank = 0; rank < ranks(); ++rank) work.mean_flops += flops_of(rank) / ranks();
    add_exchanges(dense_, work);
    add_exchanges(experts_, work);
    return work;
  }

 private:
  void add(const models::ParameterShape& shape, const std::string& prefix) {
    const std::string fqn = prefix + shape.name;
    if (!shape.trainable ||
        optim::settings_of(options_, fqn, shape.dims.size()).optimizer != config::OptimizerName::kMuon)
      return;
    const int expert_ranks = mesh_.degree(MeshDim::kEp);
    const bool apart = shape.domain == Domain::kExpert && expert_ranks > 1;
    const bool complete = apart && mesh_.degree(MeshDim::kEtp) == 1;
    LayerShard parameter;
    parameter.fqn = fqn;
    parameter.shape = parameter.local = shape.dims;
    if (!complete) parameter.split = shape.split;
    parameter.matrices = shape.matrices;
    SharedMatrices& shared = apart ? experts_ : dense_;
    if (apart) parameter.shard_experts(expert_ranks, mesh_.coordinate(rank_, MeshDim::kEp));
    parameter.shard(mesh_.degree(shared.tensor), mesh_.coordinate(rank_, shared.tensor));
    std::ranges::move(optim::matrices_of(parameter, parameters_.size(), mesh_.degree(shared.tensor)),
                      std::back_inserter(shared.matrices));
    parameters_.push_back(std::move(parameter));
  }

  // Returns the elements of a parameter's local tensor that a rank holds: one contiguous part.
  Range elements_of(size_t index, int rank) const {
    const LayerShard& parameter = parameters_[index];
    const Box local = box_of(parameter.shape, parameter.cuts),
              shard = box_of(parameter.shape, parallel::placement_of(parameter, 0, mesh_, rank).cuts);
    int64_t begin = 0;
    for (size_t dim = 0; dim < local.shape.size(); ++dim)
      begin = begin * local.shape[dim] + shard.offset[dim] - local.offset[dim];
    return {begin, shard.numel()};
  }

  void add_exchanges(const SharedMatrices& shared, MuonWork& work) const {
    if (shared.matrices.empty()) return;
    const auto bytes = static_cast<double>(checkpoint::size_of(options_.muon.ns_dtype));
    const ExchangeRank rank{.shard = mesh_.coordinate(rank_, shared.shard),
                            .shards = mesh_.degree(shared.shard),
                            .tensor = mesh_.coordinate(rank_, shared.tensor),
                            .tensors = mesh_.degree(shared.tensor)};
    const std::vector<int> holders = mesh_.group(rank_, shared.shard);
    const ExchangeLayout layout = exchange_layout(shared.matrices, rank, [&](size_t parameter, int holder) {
      return elements_of(parameter, holders[static_cast<size_t>(holder)]);
    });
    const auto add_group = [&](MeshDim group, int own, const optim::StageLayout& stage) {
      if (mesh_.degree(group) > 1)
        work.exchanges.push_back({.group = group,
                                  .sent = bytes * static_cast<double>(stage.sent_to_others(own)),
                                  .received = bytes * static_cast<double>(stage.received_from_others(own))});
    };
    add_group(shared.shard, rank.shard, layout.shards);
    add_group(shared.tensor, rank.tensor, layout.parts);
    work.buffers += bytes * static_cast<double>(layout.buffer_elements(rank));
    add_products(shared, rank, bytes, work);
  }

  void add_products(const SharedMatrices& shared, const ExchangeRank& rank, double bytes,
                    MuonWork& work) const {
    double elements = 0, largest = 0;
    for (const Matrix& matrix : shared.matrices) {
      if (matrix.shard_owner != rank.shard || (matrix.parts.size() > 1 && matrix.tensor_owner != rank.tensor))
        continue;
      const double numel = static_cast<double>(matrix.rows) * static_cast<double>(matrix.columns),
                   gram = std::pow(static_cast<double>(std::min(matrix.rows, matrix.columns)), 2);
      ++work.matrices;
      elements += numel;
      // One step reads X three times and writes it once; of the Gram matrix it writes two and reads four.
      work.moved +=
          bytes * (static_cast<double>(options_.muon.ns_steps) * (4 * numel + 6 * gram) + 8 * numel);
      largest = std::max(largest, bytes * (3 * numel + 2 * gram));
    }
    const auto rounds = static_cast<int>(optim::deal_into_exchanges(shared.matrices).size());
    work.rounds += rounds;
    work.results = std::max(work.results, bytes * elements / rounds + largest);
  }

  const config::JobConfig::Optimizer& options_;
  const Mesh& mesh_;
  int rank_;
  std::vector<LayerShard> parameters_;
  SharedMatrices dense_{.shard = MeshDim::kFsdp, .tensor = MeshDim::kTp},
      experts_{.shard = MeshDim::kEfsdp, .tensor = MeshDim::kEtp};
};

}  // namespace

double MuonWork::step_bytes() const {
  return std::accumulate(exchanges.begin(), exchanges.end(), 0.0,
                         [](double sum, const MuonExchange& exchange) { return sum + exchange.step(); });
}

std::optional<MuonWork> muon_work(const config::JobConfig& config, const models::ModelDescription& model,
                                  const Mesh& mesh, std::span<const ModelStage> stages,
                                  std::optional<int> rank) {
  if (config.optimizer.name != config::OptimizerName::kMuon) return std::nullopt;
  const OwnersPlan plan(config, model, mesh, stages, rank.value_or(0));
  if (plan.empty()) return std::nullopt;
  const int chosen = rank.value_or(plan.fullest());
  if (chosen == rank.value_or(0)) return plan.work();
  return OwnersPlan(config, model, mesh, stages, chosen).work();
}

}  // namespace hyperion::trainer
