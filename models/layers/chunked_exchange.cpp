#include "models/layers/chunked_exchange.h"

#include <utility>
#include <vector>

#include <ATen/ops/empty_like.h>

namespace hyperion::models {

void gather_chunks(const at::Tensor& all, const at::Tensor& shard, Exchange& ranks,
                   const std::function<void(int rank)>& multiply) {
  const int size = ranks.size(), own = ranks.rank();
  // In step i every rank sends to the one i places before it, and receives from the one i places behind it.
  const auto start = [&](int i) {
    if (i == size) return Pending();
    return ranks.start_transfers(
        {{Transfer::Kind::kSend, shard, (own + size - i) % size},
         {Transfer::Kind::kReceive, all.select(0, (own + i) % size), (own + i) % size}});
  };
  Pending next = start(1);
  all.select(0, own).copy_(shard);
  multiply(own);
  for (int i = 1; i < size; ++i) {
    next.wait();
    next = start(i + 1);
    multiply((own + i) % size);
  }
}

at::Tensor scatter_chunks(Exchange& ranks, const std::function<at::Tensor(int rank)>& product) {
  const int size = ranks.size(), own = ranks.rank();
  std::vector<at::Tensor> terms(static_cast<size_t>(size));  // by source
  at::Tensor sent;                                           // alive while it is read
  Pending before;
  for (int i = 1; i < size; ++i) {
    const int target = (own + i) % size, source = (own + size - i) % size;
    at::Tensor term = product(target);  // under the transfer before
    before.wait();
    sent = std::move(term);
    terms[static_cast<size_t>(source)] = at::empty_like(sent);
    before = ranks.start_transfers({{Transfer::Kind::kSend, sent, target},
                                    {Transfer::Kind::kReceive, terms[static_cast<size_t>(source)], source}});
  }
  terms[static_cast<size_t>(own)] = product(own);
  before.wait();
  const at::ScalarType dtype = terms[0].scalar_type();
  const at::ScalarType wide = dtype == at::kBFloat16 || dtype == at::kHalf ? at::kFloat : dtype;
  at::Tensor sum = terms[0].to(wide, /*non_blocking=*/false, /*copy=*/true);
  for (size_t r = 1; r < terms.size(); ++r) sum.add_(terms[r]);
  return sum.to(dtype);
}

}  // namespace hyperion::models
