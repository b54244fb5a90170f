#include "trainer/plan/group_report.h"

#include <cstdint>
#include <optional>

#include <fmt/format.h>

#include "base/counted.h"
#include "models/description.h"
#include "trainer/optim/parameter_groups.h"

namespace hyperion::trainer {

std::vector<std::string> describe_groups(const config::JobConfig::Optimizer& options,
                                         const models::ModelArgs& model) {
  if (options.groups.empty() && options.decay_norms_and_biases) return {};
  // Parameters of one group with equal settings: a group without a weight decay of its own may have two.
  struct Row {
    std::optional<size_t> group;
    optim::ParameterSettings settings;
    int64_t parameters = 0;
    double elements = 0;
  };
  std::vector<Row> rows;
  models::for_each_named_parameter(models::describe_model(model),
                                   [&](const std::string& fqn, const models::ParameterShape& shape) {
                                     const Row wanted{config::group_of(options.groups, fqn),
                                                      optim::settings_of(options, fqn, shape.dims.size())};
                                     Row* found = nullptr;
                                     for (Row& row : rows)
                                       if (row.group == wanted.group && row.settings == wanted.settings)
                                         found = &row;
                                     if (found == nullptr) found = &rows.emplace_back(wanted);
                                     ++found->parameters;
                                     found->elements += shape.numel();
                                   });
  std::vector<std::string> lines;
  const auto add = [&](const Row& row) {
    lines.push_back(fmt::format(
        "group {}: {} with {} elements, learning rate x {}, weight decay {}, betas {} and {}",
        row.group ? config::name_of(options.groups, *row.group) : "default",
        counted(row.parameters, "parameter"), format_count(static_cast<uint64_t>(row.elements)),
        row.settings.lr_scale, row.settings.weight_decay, row.settings.beta1, row.settings.beta2));
  };
  for (size_t i = 0; i < options.groups.size(); ++i) {
    const size_t before = lines.size();
    for (const Row& row : rows)
      if (row.group == i) add(row);
    if (lines.size() == before)
      lines.push_back(fmt::format("group {}: no parameter is left for it by the groups before it",
                                  config::name_of(options.groups, i)));
  }
  for (const Row& row : rows)
    if (!row.group) add(row);
  return lines;
}

}  // namespace hyperion::trainer
