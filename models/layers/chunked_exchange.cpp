#include "models/layers/chunked_exchange.h"

#include <utility>
#include <vector>

#include <ATen/ops/empty_like.h>

namespace hyperion::models {

void gather_chunks(const at::Tensor& all, const at::Tensor& shard, Exchange& group,
                   const std::function<void(int rank)>& multiply) {
  const int size = group.size(), self = group.rank();
  // In step i every rank sends to rank - i and receives from rank + i.
  const auto start = [&](int i) {
    if (i == size) return Pending();
    return group.start_transfers(
        {{Transfer::Kind::kSend, shard, (self + size - i) % size},
         {Transfer::Kind::kReceive, all.select(0, (self + i) % size), (self + i) % size}});
  };
  Pending next = start(1);
  all.select(0, self).copy_(shard);
  multiply(self);
  for (int i = 1; i < size; ++i) {
    next.wait();
    next = start(i + 1);
    multiply((self + i) % size);
  }
}

at::Tensor scatter_chunks(Exchange& group, const std::function<at::Tensor(int rank)>& product) {
  const int size = group.size(), self = group.rank();
  std::vector<at::Tensor> terms(static_cast<size_t>(size));  // by source
  at::Tensor sent;                                           // alive while it is in flight
  Pending previous;
  for (int i = 1; i < size; ++i) {
    const int target = (self + i) % size, source = (self + size - i) % size;
    at::Tensor term = product(target);  // overlaps the previous transfer
    previous.wait();
    sent = std::move(term);
    terms[static_cast<size_t>(source)] = at::empty_like(sent);
    previous =
        group.start_transfers({{Transfer::Kind::kSend, sent, target},
                               {Transfer::Kind::kReceive, terms[static_cast<size_t>(source)], source}});
  }
  terms[static_cast<size_t>(self)] = product(self);
  previous.wait();
  const at::ScalarType dtype = terms[0].scalar_type();
  const at::ScalarType wide = dtype == at::kBFloat16 || dtype == at::kHalf ? at::kFloat : dtype;
  at::Tensor sum = terms[0].to(wide, /*non_blocking=*/false, /*copy=*/true);
  for (size_t r = 1; r < terms.size(); ++r) sum.add_(terms[r]);
  return sum.to(dtype);
}

}  // namespace hyperion::models
