#include "trainer/rank_monitor.h"

#include <utility>
#include <vector>

#include "base/collective.h"
#include "base/device/device.h"
#include "base/log.h"
#include "base/process.h"

namespace hyperion::trainer {

RankMonitor::RankMonitor(const Runtime& runtime) : runtime_(runtime) {
  metrics::RankPlace own{.host = host_name(),
                         .stage = runtime.mesh->coordinate(runtime.rank(), parallel::MeshDim::kPp)};
  if (runtime.device.is_cuda()) {
    own.gpu = pci_address(runtime.device.index());
    gpu_.emplace(own.gpu);
  }
  std::vector<std::string> places = runtime.groups->host().gather(pack(own));
  if (runtime.rank() == 0) warnings_.emplace(unpack_each<metrics::RankPlace>(std::move(places)));
}

metrics::MetricList RankMonitor::log_step(int64_t step) {
  const metrics::RankFigures own{timer_->own_seconds(), gpu_ ? gpu_->take() : std::nullopt};
  timer_.reset();
  return combine_on_rank_0(runtime_.groups->host(), own, [&](const std::vector<metrics::RankFigures>& ranks) {
    for (const std::string& warning : warnings_->add(step, ranks)) log_warning("{}", warning);
    return metrics::rank_metrics(ranks);
  });
}

}  // namespace hyperion::trainer
