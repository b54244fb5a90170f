// What the CUDA kernels of the cross-entropy are given.
#pragma once

#include "models/kernels/common/launch.h"

namespace hyperion::kernels {

// Rows of logits, of which a part of the vocabulary is here.
// With losses they are computed, and with a scale the gradient too; else statistics, or the gradient from
// log_sum_exp.
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

cudaError_t launch(const CrossEntropyTask& task, Element element, cudaStream_t stream);

}  // namespace hyperion::kernels
