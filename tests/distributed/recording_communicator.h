// A communicator that passes everything on to another one and remembers which dtypes each operation carried.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>

#include "parallel/communicator.h"

namespace hyperion {

class RecordingCommunicator : public Communicator {
 public:
  explicit RecordingCommunicator(Communicator& inner)
      : Communicator(inner.name(), inner.rank(), inner.global_ranks(), nullptr), inner_(inner) {}

  // By operation ("all_gather", ...), since construction.
  const std::map<std::string, std::set<at::ScalarType>>& dtypes() const { return dtypes_; }

  std::string_view backend() const override { return inner_.backend(); }
  void set_timeout(std::chrono::milliseconds timeout) override { inner_.set_timeout(timeout); }
  void abort() override { inner_.abort(); }

 private:
  Finish record(const char* operation, const at::Tensor& tensor, Pending pending) {
    dtypes_[operation].insert(tensor.scalar_type());
    return [shared = std::make_shared<Pending>(std::move(pending))] { shared->wait(); };
  }
  Finish do_all_gather(const at::Tensor& out, const at::Tensor& in) override {
    return record("all_gather", in, inner_.start_all_gather_into(out, in));
  }
  Finish do_reduce_scatter_sum(const at::Tensor& out, const at::Tensor& in) override {
    return record("reduce_scatter", in, inner_.start_reduce_scatter_sum(out, in));
  }
  Finish do_all_reduce(const at::Tensor& tensor, bool max) override {
    return record("all_reduce", tensor,
                  max ? inner_.start_all_reduce_max(tensor) : inner_.start_all_reduce_sum(tensor));
  }
  Finish do_broadcast(const at::Tensor& tensor, int root) override {
    inner_.broadcast(tensor, root);
    return record("broadcast", tensor, Pending());
  }
  Finish do_barrier() override {
    inner_.barrier();
    return nullptr;
  }

  Communicator& inner_;
  std::map<std::string, std::set<at::ScalarType>> dtypes_;
};

}  // namespace hyperion
