// Activation checkpointing of a block, and its selective form by operation: the results of chosen operations
// of one forward are saved, so that running the block again in backward reads them instead of computing them.
// Linear layers and attention consult the SelectiveCheckpoint of their run (models/layers/block_run.h).
//
// The rule of kSelectiveOp is v0.2.2's: attention is saved, and every second matrix product, starting with
// the first (in a Llama block: wq, wv and w1 are saved; wk, wo and w3 are recomputed). Products with weights
// of chosen shapes are always recomputed and do not count. The block's last product, w2, counts but is
// neither saved nor repeated: the result of a block that is run again is not read. With a tensor parallel
// group what wo's ranks have added up is saved too, 1/T of a product, so that the exchange is not repeated.
//
// Where weights lie side by side (Parameter::pack) and at most a quarter of their results would be recomputed
// (with grouped queries: wk's), their one product is saved whole; otherwise each is multiplied alone, and
// saved by the rule (w1, not w3).
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

namespace hyperion::models {

enum class ActivationCheckpoint {
  kNone,         // autograd keeps what the block's operations saved
  kFull,         // only the block's input is kept; the block is run again in backward
  kSelectiveOp,  // as kFull, with a SelectiveCheckpoint of attention and every second product
  kElementwise,  // as kFull, with a SelectiveCheckpoint of attention and all products: only what lies between
                 // them is computed again (norms, RoPE, SwiGLU, sums)
};

class SelectiveCheckpoint {
 public:
  using Results = std::vector<at::Tensor>;
  using Shapes = std::vector<std::vector<int64_t>>;

  enum class Products { kEverySecond, kAll };

  // `always_recompute`: global shapes [out, in] of weights; it must outlive the checkpoint. Of kEverySecond.
  explicit SelectiveCheckpoint(const Shapes& always_recompute, Products saved = Products::kEverySecond)
      : always_recompute_(always_recompute), saved_products_(saved) {}

  // Whether the next matrix product, with a weight of this shape, is one of the saved ones. Call once for
  // each, in order.
  bool saves_next_matmul(at::IntArrayRef weight_shape);

  bool saves_all_products() const { return saved_products_ == Products::kAll; }

  void save(Results results) { saved_.push_back(std::move(results)); }

  // From now on the block runs again: saved results are taken in the order in which they were saved.
  void start_recompute() {
    recomputing_ = true;
    matmuls_ = 0;
  }
  bool recomputing() const { return recomputing_; }
  Results take_saved();  // Error(kBug) when the second run asks for more than the first one saved

 private:
  const Shapes& always_recompute_;
  Products saved_products_;
  std::deque<Results> saved_;
  int64_t matmuls_ = 0;
  bool recomputing_ = false;
};

// What saves results of a block's forward for running it again; null where a mode saves none.
std::unique_ptr<SelectiveCheckpoint> selective_checkpoint(
    ActivationCheckpoint mode, const SelectiveCheckpoint::Shapes& always_recompute);

// What backward runs again of a whole model.
struct ActivationCheckpointing {
  std::vector<ActivationCheckpoint> blocks{};  // one per block
  // Under kSelectiveOp: shapes of weights whose products are never saved.
  SelectiveCheckpoint::Shapes always_recompute{};
};

// compute(), or what the checkpoint saved of it when the block is being run again. checkpoint: may be null;
// save: whether this result is one of those that are saved.
template <typename Compute>
SelectiveCheckpoint::Results saved_or_computed(SelectiveCheckpoint* checkpoint, bool save, Compute compute) {
  if (checkpoint == nullptr || !save) return compute();
  if (checkpoint->recomputing()) return checkpoint->take_saved();
  SelectiveCheckpoint::Results results = compute();
  checkpoint->save(results);
  return results;
}

}  // namespace hyperion::models
