#include "parallel/comm/streamed_exchange.h"

#include <memory>
#include <utility>

#include "parallel/comm/step_timer.h"

namespace hyperion::parallel {

Pending StreamedExchange::start_on_stream(std::vector<at::Tensor> tensors,
                                          const std::function<Pending()>& start) {
  struct InFlight {
    Pending operation;
    DeviceEvent finished;
    std::vector<at::Tensor> tensors;
  };
  auto in_flight = std::make_shared<InFlight>();
  in_flight->tensors = std::move(tensors);
  // The operation must not write before earlier work has read: that work may have freed the memory of
  // `out`.
  stream_.wait(DeviceStream::current(device_));
  {
    const StreamScope scope(stream_);
    in_flight->operation = start();
    in_flight->finished.record(stream_);
  }
  return Pending([this, in_flight = std::move(in_flight)] {
    if (!in_flight->operation.done()) {  // on a CPU, or a result that goes to the host
      const StreamScope scope(stream_);
      in_flight->operation.wait();
      in_flight->finished.record(stream_);
    }
    RankWait wait(device_.type());
    DeviceStream::current(device_).wait(in_flight->finished);
    wait.done();
  });
}

Pending StreamedExchange::start_all_gather_into(const at::Tensor& out, const at::Tensor& in) {
  return start_on_stream({out, in}, [&] { return group_.start_all_gather_into(out, in); });
}

Pending StreamedExchange::start_reduce_scatter_sum(const at::Tensor& out, const at::Tensor& in) {
  return start_on_stream({out, in}, [&] { return group_.start_reduce_scatter_sum(out, in); });
}

Pending StreamedExchange::start_all_reduce_sum(const at::Tensor& tensor) {
  return start_on_stream({tensor}, [&] { return group_.start_all_reduce_sum(tensor); });
}

Pending StreamedExchange::start_all_reduce_max(const at::Tensor& tensor) {
  return start_on_stream({tensor}, [&] { return group_.start_all_reduce_max(tensor); });
}

}  // namespace hyperion::parallel
