#include "trainer/engine/layer_metrics.h"

#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

namespace hyperion::trainer {
namespace {

using Reduction = models::LayerMetrics::Reduction;
using Tags = std::map<std::string, Reduction>;

// Gathers the tags of all stages. Stages exchange text: one line per tag, its reduction then its name.
Tags tags_of_stages(const Tags& own, parallel::Communicator& stages, at::Device device) {
  if (stages.size() == 1) return own;
  std::string text;
  for (const auto& [tag, reduction] : own) text += fmt::format("{}{}\n", static_cast<int>(reduction), tag);
  const auto of_all = [&](const at::Tensor& part) {
    at::Tensor all = at::zeros({stages.size(), part.numel()}, part.options());
    stages.all_gather_into(all, part);
    return all.cpu();
  };
  const at::Tensor lengths = of_all(at::full({1}, static_cast<int64_t>(text.size()), at::kLong).to(device));
  const auto longest = static_cast<size_t>(lengths.max().item<int64_t>());
  Tags tags = own;
  if (longest == 0) return tags;
  text.resize(longest, '\n');
  const at::Tensor texts =
      of_all(at::from_blob(text.data(), {static_cast<int64_t>(longest)}, at::kByte).to(device));
  std::string_view rest(static_cast<const char*>(texts.const_data_ptr()), texts.nbytes());
  while (!rest.empty()) {
    const size_t end = rest.find('\n');
    if (end > 0) tags.emplace(rest.substr(1, end - 1), static_cast<Reduction>(rest[0] - '0'));
    rest.remove_prefix(end + 1);
  }
  return tags;
}

}  // namespace

metrics::MetricList reduce_layer_metrics(const models::LayerMetrics& recorded,
                                         const parallel::ReduceChain& ranks, parallel::Communicator& stages,
                                         at::Device device) {
  Tags own;
  for (const auto& [tag, metric] : recorded.by_tag) own.emplace(tag, metric.reduction);
  const Tags tags = tags_of_stages(own, stages, device);
  if (tags.empty()) return {};
  // Each tag has three numbers: the sum of its values, their count and their maximum.
  std::vector<at::Tensor> sums, maxima;
  const auto options = at::TensorOptions(at::kDouble).device(device);
  for (const auto& [tag, reduction] : tags) {
    const auto found = recorded.by_tag.find(tag);
    if (found == recorded.by_tag.end()) {
      sums.push_back(at::zeros({2}, options));
      maxima.push_back(at::full({}, -std::numeric_limits<double>::infinity(), options));
      continue;
    }
    at::Tensor values = at::stack(found->second.values).to(at::kDouble);
    maxima.push_back(values.max());
    if (reduction == Reduction::kRootMeanSquare) values = values.square();
    sums.push_back(at::stack({values.sum(), at::full({}, static_cast<double>(values.numel()), options)}));
  }
  const at::Tensor sum = at::stack(sums), maximum = at::stack(maxima);
  ranks.all_reduce_sum(sum);
  ranks.all_reduce_max(maximum);
  const at::Tensor on_host = sum.cpu(), maximum_on_host = maximum.cpu();
  const auto numbers = on_host.accessor<double, 2>();
  const auto largest = maximum_on_host.accessor<double, 1>();
  metrics::MetricList list;
  for (const auto& [tag, reduction] : tags) {
    const auto i = static_cast<int64_t>(list.size());
    const double mean = numbers[i][0] / numbers[i][1];
    list.emplace_back(tag, reduction == Reduction::kMax              ? largest[i]
                           : reduction == Reduction::kSum            ? numbers[i][0]
                           : reduction == Reduction::kRootMeanSquare ? std::sqrt(mean)
                                                                     : mean);
  }
  return list;
}

}  // namespace hyperion::trainer
