// PartDescription describes a part of a model as plain data: its parameters and its widths. Layers make their
// parameters from it. Counts, FLOPs, memory, checks and names in other formats are sums and tables over it.
// This header includes no libtorch.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/init.h"
#include "base/placement.h"
#include "models/args/model_args.h"

namespace hyperion::models {

// The dimension of a linear weight [out, in] that tensor parallel ranks shard: rows for a column layer,
// columns for a row layer.
inline constexpr int kSplitByRows = 0, kSplitByColumns = 1;

// The purpose of a parameter, which decides its initial distribution.
enum class Draw {
  kOnes,      // norms
  kZeros,     // biases
  kInput,     // layers that read the stream
  kResidual,  // layers that add to the stream: smaller with the depth of the layer or of the model
  kTable,     // an untied embedding
  kHead,      // the head, and a tied embedding
};

// The tensor that has a parameter in Hugging Face's files.
struct HuggingFaceTensor {
  // * stands for the number of the block. # stands for the number of an expert, if each expert's matrix is
  // its own tensor. "" means that such files do not have the parameter.
  std::string name;
  bool rotated = false;     // whether RoPE rotates its rows, which are those of heads
  int64_t fused_width = 0;  // if not 0, the tensor is a stack of transposed matrices with this many columns,
  int64_t fused_first = 0;  // and this is the parameter's first column
};

struct ParameterShape {
  std::string name;           // "attention.wq.weight" in a block, "norm.weight" outside
  std::vector<int64_t> dims;  // global shape
  Draw draw = Draw::kOnes;
  int64_t matrices = 1;            // ParameterDescription::matrices
  std::optional<int> split{};      // the dimension that tensor parallel ranks shard; nullopt: replicated
  Domain domain = Domain::kDense;  // kExpert: dims[0] counts experts, which expert parallel ranks shard
  bool trainable = true;           // ParameterDescription::trainable
  HuggingFaceTensor hugging_face{};

  double numel() const;  // a double, which no dimensions overflow
};

struct AttentionWidths {
  int64_t heads = 0, kv_heads = 0;
  int64_t head_dim = 0, v_head_dim = 0;  // the widths of a head: of queries and keys, and of values
  int64_t rotated = 0;                   // how many elements of head_dim RoPE rotates
  int64_t window = 0;                    // how many keys a query sees at most; 0: all before it

  // Returns how many keys a query of a sequence sees in the mean, of `seq_len` tokens: half of them without
  // a window.
  double mean_keys(double seq_len) const {
    const double most =
        window > 0 && static_cast<double>(window) < seq_len ? static_cast<double>(window) : seq_len;
    return most * (1 - most / (2 * seq_len));
  }
};

struct ExpertWidths {
  int64_t experts = 0, top_k = 0;
  int64_t dim = 0, hidden = 0;  // the widths of one expert

  // Returns how many elements the backward of one (token, expert) pair holds at once if `parts` ranks shard
  // the hidden width: the row and both products, or both products and their activation.
  double elements_per_row(double parts) const;
};

// An extent that tensor parallel ranks shard.
struct ShardedExtent {
  std::string what;  // "query heads"
  int64_t extent = 0;
  bool evenly = false;  // whether the number of ranks must divide the extent; otherwise it must not exceed it
};

struct PartDescription {
  std::vector<ParameterShape> parameters;  // in all-gather order
  std::vector<ParameterShape> buffers{};   // saved with the parameters, but without gradients
  std::optional<AttentionWidths> attention{};
  std::optional<ExpertWidths> experts{};
  std::vector<ShardedExtent> extents{};
};

// Describes the bias of a layer by its weight, [out, in] or a stack of them: the weight's shape without the
// inputs, sharded if the weight's outputs are, else replicated. Its names end in "bias" instead of "weight",
// or in "_bias" if the weight's name has no such end. fused_width and fused_first are not taken over.
ParameterShape bias_of(const ParameterShape& weight, Draw draw = Draw::kZeros);
// Adds the biases of these weights behind the other parameters of the part, where their gradients are packed
// together.
void add_biases(PartDescription& part, std::initializer_list<std::string_view> weights,
                Draw draw = Draw::kZeros);

// Finds a parameter or buffer by name. Throws Error(kBug) if the part has none of that name.
const ParameterShape& shape_of(const PartDescription& part, std::string_view name);

// Returns the initial distribution of a parameter of block `layer`. For a parameter outside blocks `layer` is
// ignored.
Init init_of(const ParameterShape& shape, const ModelArgs& args, int64_t layer);

}  // namespace hyperion::models
