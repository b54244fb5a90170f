// A part of a model as plain data: its parameters and its widths. Layers make their parameters from it, and
// counts, FLOPs, memory, checks and names in other formats are sums and tables over it. No libtorch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/init.h"
#include "base/placement.h"
#include "models/args/model_args.h"

namespace hyperion::models {

// The dimension of a linear weight [out, in] that tensor parallel ranks shard: of a column or a row layer.
inline constexpr int kSplitByRows = 0, kSplitByColumns = 1;

// The distribution of initial elements, by what a parameter is for.
enum class Draw {
  kOnes,      // norms
  kZeros,     // biases
  kInput,     // layers that read the stream
  kResidual,  // layers whose results are added to the stream: smaller the deeper they or the model are
  kTable,     // an embedding of its own
  kHead,      // the head, and an embedding that the head shares
};

// Where Hugging Face's files have a parameter.
struct HuggingFaceTensor {
  // * stands for the number of the block, # for that of an expert, whose matrix is a tensor of its own; "":
  // such files have none.
  std::string name;
  bool rotated = false;     // its rows are those of heads that RoPE rotates
  int64_t fused_width = 0;  // above 0: a stack of transposed matrices that many columns wide,
  int64_t fused_first = 0;  // of which this parameter's begin here
};

struct ParameterShape {
  std::string name;           // "attention.wq.weight" in a block, "norm.weight" outside
  std::vector<int64_t> dims;  // global
  Draw draw = Draw::kOnes;
  std::optional<int> split{};      // the dimension that tensor parallel ranks shard; none: they replicate it
  Domain domain = Domain::kDense;  // kExpert: dims[0] counts experts, which expert parallel ranks shard
  bool trainable = true;           // Parameter::trainable
  HuggingFaceTensor hugging_face{};

  double numel() const;  // as a double, which no product of dimensions overflows
};

struct AttentionWidths {
  int64_t heads = 0, kv_heads = 0;
  int64_t head_dim = 0, v_head_dim = 0;  // elements of a head's queries and keys, and of its values
  int64_t rotated = 0;                   // of head_dim, the elements that RoPE rotates
};

struct ExpertWidths {
  int64_t experts = 0, top_k = 0;
  int64_t dim = 0, hidden = 0;  // of one expert

  // Elements that the backward of one (token, expert) pair holds at once where `parts` ranks shard the hidden
  // width: the row and both products, or both products and their activation.
  double elements_per_row(double parts) const;
};

// Elements of one token that the weight gradients of a part read, for the least that a deferred backward
// keeps.
struct WeightGradientInputs {
  int64_t gathered =
      0;  // inputs of column layers, whole on every tensor parallel rank where it has gathered them
  int64_t sharded = 0;    // results of column and inputs of row layers, which tensor parallel ranks shard
  int64_t scattered = 0;  // gradients of row layers' results, whole on every rank
};

// An extent that tensor parallel ranks shard.
struct ShardedExtent {
  std::string what;  // "query heads"
  int64_t extent = 0;
  bool evenly = false;  // each rank must have the same number; else each must have at least one
};

struct PartDescription {
  std::vector<ParameterShape> parameters;  // in the order in which they are gathered
  std::vector<ParameterShape> buffers{};   // saved with them, not trained by gradients
  std::optional<AttentionWidths> attention{};
  std::optional<ExpertWidths> experts{};
  WeightGradientInputs weight_gradient_inputs{};
  std::vector<ShardedExtent> extents{};
};

// Throws Error(kBug) for a name that the part does not have.
const ParameterShape& shape_of(const PartDescription& part, std::string_view name);

// The initial distribution of a parameter of that block; of one outside blocks `layer` has no meaning.
Init init_of(const ParameterShape& shape, const ModelArgs& args, int64_t layer);

}  // namespace hyperion::models
