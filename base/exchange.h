// An Exchange sends tensors between ranks that share the work of one batch. parallel/'s Communicator
// implements it; the trainer passes it to the models, which know no backend.
//
// Every rank of the group must start the same collectives in the same order. Transfers between two ranks
// are matched by their order on both; an all-to-all counts as one in each direction. Over NCCL the
// operations of a group run in sequence, so collectives and transfers must be in one order as well. Tensors
// must be contiguous and on the group's device, and must not be touched between start and wait.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace hyperion {

// An operation in flight. It may be dropped without wait(), but then the tensors must outlive the group's
// next operation and their content is unspecified.
class [[nodiscard]] Pending {
 public:
  Pending() = default;  // already complete
  explicit Pending(std::function<void()> finish) : finish_(std::move(finish)) {}
  Pending(Pending&& other) noexcept : finish_(std::exchange(other.finish_, nullptr)) {}
  Pending& operator=(Pending&& other) noexcept {
    finish_ = std::exchange(other.finish_, nullptr);
    return *this;
  }

  bool done() const { return finish_ == nullptr; }
  // Throws Error(kCommunication) naming rank, group, operation and phase. A second call does nothing.
  void wait() {
    if (auto finish = std::exchange(finish_, nullptr)) finish();
  }
  // Makes the current stream of a GPU wait, and leaves the operation in flight for another stream's wait().
  void wait_on_current_stream() const {
    if (finish_) finish_();
  }

 private:
  std::function<void()> finish_;
};

// A tensor sent from one rank of a group to another.
struct Transfer {
  enum class Kind { kSend, kReceive };
  Kind kind = Kind::kSend;
  at::Tensor tensor{};
  int peer = 0;  // the other rank's index in the group
};

// The rows [first, first + rows) of a tensor.
struct RowBlock {
  int64_t first = 0, rows = 0;
};

class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual int rank() const = 0;  // this rank's index in the group
  virtual int size() const = 0;

  // out[r] = in of rank r. `out` has size() times the elements of `in` and its dtype; `in` may be this
  // rank's chunk of `out`.
  virtual Pending start_all_gather_into(const at::Tensor& out, const at::Tensor& in) = 0;

  // out = sum over ranks r of (chunk rank() of r's in). `in` has size() times the elements of `out` and its
  // dtype: float32, float64, bfloat16, float16, int64 or int32. 16-bit floats are summed in float32.
  virtual Pending start_reduce_scatter_sum(const at::Tensor& out, const at::Tensor& in) = 0;

  // In place; dtypes as above. The result has the same bits on every rank.
  virtual Pending start_all_reduce_sum(const at::Tensor& tensor) = 0;
  virtual Pending start_all_reduce_max(const at::Tensor& tensor) = 0;

  // An all-to-all of n blocks of rows for each rank, which lie anywhere in `in` and `out`. Block r * n + i of
  // `in_blocks` goes to rank r, that of `out_blocks` comes from it; the i-th block that one rank sends is the
  // i-th that the other receives. Blocks may be empty. Both tensors have rows of one size and one dtype. Rows
  // of `out` outside the blocks are not written.
  virtual Pending start_block_exchange(const at::Tensor& out, const at::Tensor& in,
                                       std::span<const RowBlock> out_blocks,
                                       std::span<const RowBlock> in_blocks) = 0;
  // Sends all rows in rank order: the in_rows[r] rows of `in` go to rank r, out_rows[r] rows of `out` come
  // from it (its in_rows[rank()]); zero is allowed.
  Pending start_all_to_all(const at::Tensor& out, const at::Tensor& in, std::span<const int64_t> out_rows,
                           std::span<const int64_t> in_rows) {
    return start_block_exchange(out, in, blocks_of_all(out, out_rows), blocks_of_all(in, in_rows));
  }

  // Runs several sends and receives as one operation. A received tensor has the number of elements and the
  // dtype that its peer sends. Start both directions between two ranks before waiting for either, over NCCL
  // in one call: two ranks that both wait for their send deadlock until the group's timeout. (Through
  // shared memory a send is complete once it is written; about 2 MiB need no receiver.)
  virtual Pending start_transfers(std::vector<Transfer> transfers) = 0;
  Pending start_send(const at::Tensor& tensor, int peer) {
    return start_transfers({{Transfer::Kind::kSend, tensor, peer}});
  }
  Pending start_recv(const at::Tensor& tensor, int peer) {
    return start_transfers({{Transfer::Kind::kReceive, tensor, peer}});
  }

 private:
  // Returns blocks of `counts` rows behind each other; none if these are not all rows, which is refused then.
  static std::vector<RowBlock> blocks_of_all(const at::Tensor& tensor, std::span<const int64_t> counts) {
    std::vector<RowBlock> blocks;
    int64_t first = 0;
    for (const int64_t rows : counts) {
      blocks.push_back({first, rows});
      first += rows;
    }
    if (tensor.dim() == 0 || first != tensor.size(0)) blocks.clear();
    return blocks;
  }
};

}  // namespace hyperion
