// What the fused CUDA kernels are given: raw pointers, so that nvcc sees no libtorch. Every tensor is fp32 or
// bf16, all of a task in one dtype where nothing else is said. Strides and extents count elements.
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

namespace hyperion::kernels {

enum class Element { kFloat, kBFloat16 };

// Heads [tokens, heads, head_dim] of a tensor, a head's elements side by side. Token (sequence, position)
// lies at part * (position / each) + sequence_stride * sequence + position_stride * (position % each).
struct HeadsLayout {
  void* data = nullptr;
  int64_t part = 0, sequence = 0, position = 0, head = 0;  // strides
};

struct RopeTask {
  HeadsLayout q, k, v;              // read; v.data null: values are left alone
  HeadsLayout q_out, k_out, v_out;  // written; may not overlap what is read
  int heads = 0, kv_heads = 0, half = 0;
  int64_t sequences = 0, length = 0;           // tokens: sequences * length
  int64_t each = 0;                            // tokens of a part of a sequence
  const float *cos = nullptr, *sin = nullptr;  // [positions, half]
  int64_t positions = 0;                       // length, or sequences * length
  bool inverse = false, interleaved = false;
};

struct SwigluTask {
  const void *gate = nullptr, *up = nullptr;  // [rows, n]
  int64_t gate_stride = 0, up_stride = 0;     // between rows
  int64_t rows = 0, n = 0;
  void* output = nullptr;  // forward: [rows, n]
  // Backward:
  const void* grad = nullptr;  // [rows, n]
  int64_t grad_stride = 0;
  void* packed = nullptr;  // [rows, 2 n]: the gradients of gate, then of up
};

struct AddRmsNormTask {
  const void *x = nullptr, *residual = nullptr;  // [rows, n]
  const void* weight = nullptr;                  // [n]
  int64_t rows = 0, n = 0;
  float eps = 0;
  void *sum = nullptr, *output = nullptr;  // [rows, n]
  float* rstd = nullptr;                   // [rows]
};

// Terms of a gradient beside the first.
constexpr int kMoreTerms = 2;

struct AddRmsNormBackwardTask {
  const void *grad = nullptr, *grad_sum = nullptr, *sum = nullptr;  // [rows, n]
  // Further terms of grad, [rows, n] each, from the first on; null: no more. They are added up from the last
  // to grad itself, rounded after each sum.
  const void* more[kMoreTerms] = {};
  const void* weight = nullptr;  // [n]
  const float* rstd = nullptr;   // [rows]
  int64_t rows = 0, n = 0;
  int64_t blocks = 0;           // rms_norm_blocks(rows)
  void* grad_x = nullptr;       // [rows, n]
  float* partial = nullptr;     // [blocks, n], work space
  void* grad_weight = nullptr;  // [n]
};
// How many blocks share the rows of a backward. The same on every GPU, as the order of a sum depends on it.
inline int64_t rms_norm_blocks(int64_t rows) {
  constexpr int64_t kMost = 512;
  return rows < kMost ? rows : kMost;
}

// Rows of logits, of which a part of the vocabulary is here.
struct CrossEntropyTask {
  void* logits = nullptr;           // [rows, columns]; where a gradient is wanted it replaces them
  const int64_t* labels = nullptr;  // [rows]
  int64_t rows = 0, columns = 0;
  int64_t first = 0, vocabulary = 0;   // of the columns in the vocabulary; its size
  const float* scale = nullptr;        // of the gradient; null: none is wanted
  float* losses = nullptr;             // [rows]
  float* statistics = nullptr;         // [rows, 3]
  const float* log_sum_exp = nullptr;  // [rows]
};

// What a launch makes of its task follows from what of it is given: a SwigluTask with a gradient is a
// backward; a CrossEntropyTask computes losses (and with a scale the gradient), statistics, or the gradient
// from log_sum_exp. Each returns how the launch went. Rows are read 16 bytes at a time where addresses,
// strides and extents allow it, and element by element otherwise.
cudaError_t launch(const RopeTask& task, Element element, cudaStream_t stream);
cudaError_t launch(const SwigluTask& task, Element element, cudaStream_t stream);
cudaError_t launch(const AddRmsNormTask& task, Element element, cudaStream_t stream);
cudaError_t launch(const AddRmsNormBackwardTask& task, Element element, cudaStream_t stream);
cudaError_t launch(const CrossEntropyTask& task, Element element, cudaStream_t stream);

}  // namespace hyperion::kernels
