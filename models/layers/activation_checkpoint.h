// Activation checkpointing (AC) of a block, and selective AC (SAC), which saves the outputs of chosen
// operations in forward so that the recomputation in backward reads them. Linear layers and attention consult
// the SelectiveCheckpoint of their run (models/layers/block_run.h).
//
// kSelectiveOp follows v0.2.2: it saves attention and every second matrix product, starting with the first.
// In a Llama block wq, wv and w1 are saved; wk, wo and w3 are recomputed. Products with weights of chosen
// shapes are always recomputed and do not count. The block's last product, w2, counts but is neither saved
// nor recomputed, because nothing reads the output of a recomputed block. With a tensor parallel group the
// reduce-scattered output of wo is saved too (1/T of the product), so that it is not communicated twice.
//
// Packed weights (Parameter::pack) are one product. If at most a quarter of its output would be recomputed
// (wk of grouped queries), all of it is saved; otherwise each layer is multiplied alone and follows the rule
// (w1 is saved, w3 is not).
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

namespace hyperion::models {

enum class ActivationCheckpoint {
  kNone,         // no recomputation: autograd keeps the saved tensors of all operations
  kFull,         // only the block's input is kept; backward recomputes the block
  kSelectiveOp,  // SAC of attention and every second product
  kElementwise,  // SAC of attention and all products: only the operations between them are recomputed (norms,
                 // RoPE, SwiGLU, sums)
};

class SelectiveCheckpoint {
 public:
  using Results = std::vector<at::Tensor>;
  using Shapes = std::vector<std::vector<int64_t>>;

  enum class Products { kEverySecond, kAll };

  // `always_recompute`: global shapes [out, in] of weights, for kEverySecond. It must outlive the checkpoint.
  explicit SelectiveCheckpoint(const Shapes& always_recompute, Products saved = Products::kEverySecond)
      : always_recompute_(always_recompute), saved_products_(saved) {}

  // Returns whether the next matrix product, with a weight of this shape, is saved. Each product calls it
  // once, in order.
  bool saves_next_matmul(at::IntArrayRef weight_shape);

  bool saves_all_products() const { return saved_products_ == Products::kAll; }

  void save(Results results) { saved_.push_back(std::move(results)); }

  // Starts the recomputation: take_saved() then returns the saved results in the order of save().
  void start_recompute() {
    recomputing_ = true;
    matmuls_ = 0;
  }
  bool recomputing() const { return recomputing_; }
  Results take_saved();  // throws Error(kBug) if no saved result is left

 private:
  const Shapes& always_recompute_;
  Products saved_products_;
  std::deque<Results> saved_;
  int64_t matmuls_ = 0;
  bool recomputing_ = false;
};

// Makes the SelectiveCheckpoint of a block; null if the mode saves no outputs.
std::unique_ptr<SelectiveCheckpoint> selective_checkpoint(
    ActivationCheckpoint mode, const SelectiveCheckpoint::Shapes& always_recompute);

// The activation checkpointing of a model.
struct ActivationCheckpointing {
  std::vector<ActivationCheckpoint> blocks{};  // one per block
  // For kSelectiveOp: shapes of weights whose products are never saved.
  SelectiveCheckpoint::Shapes always_recompute{};
};

// Returns compute(), or in a recomputation the results that the checkpoint saved. checkpoint may be null.
// `save` says whether these results are saved.
template <typename Compute>
SelectiveCheckpoint::Results saved_or_computed(SelectiveCheckpoint* checkpoint, bool save, Compute compute) {
  if (checkpoint == nullptr || !save) return compute();
  if (checkpoint->recomputing()) return checkpoint->take_saved();
  SelectiveCheckpoint::Results results = compute();
  checkpoint->save(results);
  return results;
}

}  // namespace hyperion::models
