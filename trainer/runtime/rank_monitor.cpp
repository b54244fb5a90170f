#include "trainer/runtime/rank_monitor.h"

#include <utility>
#include <vector>

#include "base/collective.h"
#include "base/device/device.h"
#include "base/log.h"
#include "base/process.h"

namespace hyperion::trainer {

RankMonitor::RankMonitor(const Runtime& runtime, std::optional<double> planned_bubble)
    : runtime_(runtime), planned_bubble_(planned_bubble) {
  for (int rank = 0; rank < runtime.world_size(); ++rank)
    stages_.push_back(runtime.mesh->coordinate(rank, parallel::MeshDim::kPp));
  metrics::RankPlace own{.host = host_name(), .stage = stages_[static_cast<size_t>(runtime.rank())]};
  if (runtime.device.is_cuda()) {
    own.gpu = pci_address(runtime.device.index());
    gpu_.emplace(own.gpu);
  }
  std::vector<std::string> places = runtime.groups->host().gather(pack(own));
  if (runtime.rank() == 0) warnings_.emplace(unpack_each<metrics::RankPlace>(std::move(places)));
}

metrics::MetricList RankMonitor::log_step(int64_t step) {
  const metrics::RankFigures own{timer_->own_seconds(), gpu_ ? gpu_->take() : std::nullopt,
                                 timer_->schedule_seconds(), timer_->transfer_wait_seconds()};
  timer_.reset();
  return combine_on_rank_0(runtime_.groups->host(), own, [&](const std::vector<metrics::RankFigures>& ranks) {
    for (const std::string& warning : warnings_->add(step, ranks)) log_warning("{}", warning);
    metrics::MetricList list = metrics::rank_metrics(ranks);
    if (planned_bubble_)
      for (auto& metric : metrics::pipeline_metrics(ranks, stages_, *planned_bubble_))
        list.push_back(std::move(metric));
    return list;
  });
}

}  // namespace hyperion::trainer
