#include "trainer/config/validate_experts.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/counted.h"
#include "trainer/config/checks.h"
#include "trainer/config/mesh_fits.h"
#include "trainer/config/schema.h"

namespace hyperion::config {
namespace {

class ExpertChecks : ChecksOfConfig {
 public:
  using ChecksOfConfig::ChecksOfConfig;

  void degrees(const models::ModelArgs& model) {
    const auto& p = config_.parallelism;
    const int64_t parts = p.expert_parallel_degree, of_each = p.expert_tensor_parallel_degree;
    if (parts == 1) {
      refuse_if(model.experts.hidden_dim % p.tensor_parallel_degree != 0,
                "parallelism.tensor_parallel_degree",
                fmt::format("expected a divisor of the experts' hidden width, which is {}",
                            model.experts.hidden_dim));
      return;
    }
    refuse_if(p.expert_parallel_comm_backend == "deepep", "parallelism.expert_parallel_comm_backend",
              "DeepEP's kernels are not available; set \"standard\"");
    refuse_if(of_each != 1 && of_each != p.tensor_parallel_degree,
              "parallelism.expert_tensor_parallel_degree",
              fmt::format("expected 1, or tensor_parallel_degree, which is {}", p.tensor_parallel_degree));
    refuse_if(
        model.experts.hidden_dim % of_each != 0, "parallelism.expert_tensor_parallel_degree",
        fmt::format("expected a divisor of the experts' hidden width, which is {}; 1 leaves each expert "
                    "complete on its rank",
                    model.experts.hidden_dim));
    refuse_if(model.experts.num_experts % parts != 0, "parallelism.expert_parallel_degree",
              fmt::format("expected a divisor of the model's {} experts", model.experts.num_experts));
    if (p.expert_parallel_once_per_node && run_.ranks_per_node) once_per_node(parts * of_each, of_each);
    if (!run_.world_size || !mesh_fits(p, *run_.world_size)) return;
    const int64_t ranks = *run_.world_size / p.pipeline_parallel_degree / p.data_parallel_replicate_degree;
    refuse_if(
        ranks % (parts * of_each) != 0, "parallelism.expert_parallel_degree",
        of_each == 1
            ? fmt::format("expected a divisor of the {} of shard x context x tensor", counted(ranks, "rank"))
            : fmt::format("expected a degree that with expert_tensor_parallel_degree {} makes a "
                          "divisor of the {} of shard x context x tensor; lower one of both",
                          of_each, counted(ranks, "rank")));
  }

  // ranks: those that split the experts of one block, of which `of_each` neighbours split each expert.
  void once_per_node(int64_t ranks, int64_t of_each) {
    const int64_t node = *run_.ranks_per_node;
    const char* key = "parallelism.expert_parallel_once_per_node";
    if (node % ranks == 0)
      refuse(key,
             fmt::format("the {} that split the experts are on one node, which has {} (LOCAL_WORLD_SIZE): "
                         "no token travels between nodes; remove the key",
                         counted(ranks, "rank"), node));
    else if (ranks % node != 0 || node % of_each != 0)
      refuse(key,
             fmt::format("expected expert_parallel_degree x expert_tensor_parallel_degree, {}, to be whole "
                         "nodes of {} (LOCAL_WORLD_SIZE), and the ranks of an expert, {}, to be on one node",
                         counted(ranks, "rank"), counted(node, "rank"), of_each));
  }

  // Checks the names of the converter `table` and the widths of the experts.
  void float8(const models::ModelArgs& model, const std::string& table, const std::vector<std::string>& fqns,
              float8::GroupedRecipe recipe) {
    std::vector<std::string> names;
    for (int64_t layer = 0; layer < model.n_layers; ++layer)
      if (model.experts.are_in(layer)) names.push_back(models::experts_name(layer));
    if (names.empty()) {
      refuse("model.converters", fmt::format("{}: the model has no experts; remove it from the list", table));
      return;
    }
    const std::string key = table + ".fqns";
    refuse_if(fqns.empty(), key,
              fmt::format("expected parts of names of experts, which are {}{}: [\"experts\"] converts all of "
                          "them",
                          names.front(), names.size() > 1 ? " to " + names.back() : ""));
    for (const std::string& part : fqns)
      refuse_if(std::ranges::none_of(
                    names, [&](const std::string& name) { return name.find(part) != std::string::npos; }),
                key,
                fmt::format("\"{}\" is part of no experts' name, which are {}{}", part, names.front(),
                            names.size() > 1 ? " to " + names.back() : ""));
    const auto& p = config_.parallelism;
    const int64_t parts =
                      divides_experts(config_) ? p.expert_tensor_parallel_degree : p.tensor_parallel_degree,
                  unit = float8::unit_of(recipe);
    refuse_if(model.dim % unit != 0 || model.experts.hidden_dim % (unit * parts) != 0, "model.converters",
              fmt::format("{}: experts of widths {} and {}{}: expected multiples of {}; remove it from the "
                          "list, or change model.args.dim or moe_hidden_dim",
                          table, model.dim, model.experts.hidden_dim,
                          parts > 1 ? fmt::format(", the second one in {} parts", parts) : "", unit));
  }
};

}  // namespace

void check_experts(const ResolvedConfig& resolved, const RunContext& run, Problems& problems) {
  ExpertChecks checks(resolved, run, problems);
  const models::ModelArgs& model = *run.model;
  if (model.experts.are_present()) checks.degrees(model);
  const auto& converted = resolved.config.quantize.grouped_mm;
  if (kGroupedFloat8.on(resolved.config))
    checks.float8(model, "quantize.grouped_mm.float8", converted.float8.fqns,
                  float8::GroupedRecipe::kRowwise);
  if (kGroupedMx.on(resolved.config))
    checks.float8(model, "quantize.grouped_mm.mx", converted.mx.fqns, float8::GroupedRecipe::kMx);
}

}  // namespace hyperion::config
