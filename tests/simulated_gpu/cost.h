// What an operator reads, writes and computes, told by its arguments and results.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/ivalue.h>

namespace c10 {
struct FunctionSchema;
}

namespace simulated_gpu {

struct Cost {
  uint64_t read = 0, written = 0;  // bytes of device memory, each tensor once
  uint64_t flops = 0;  // of matrix products and attention: 2 for a multiplication with its addition
  // "bf16 8192x4096x14336" of a product (m x k x n; "fp8_slow": FP8 without fast accumulation), else the
  // largest tensor
  std::string of;
};

// Of any operator: the tensors that it is given are read, those that its schema changes or returns are
// written. A tensor without a storage of its own counts by the elements that it reaches, and where they lie
// apart by the 32 bytes that a GPU moves for each. Views that a custom operator returns must be declared.
Cost cost_of(const c10::FunctionSchema& schema, const std::vector<c10::IValue>& given,
             const std::vector<c10::IValue>& results);

// Counts what this thread launches: an operator's launches are those between its begin and its end.
struct Launches {
  uint64_t kernels = 0, copies = 0;  // copies and fills of memory by the runtime
  uint64_t flops = 0;                // of products that cublasLt was asked for
  std::string product = {};          // the newest of them, as Cost::of
  bool in_operator = false;
};
Launches& launches();

// Has the trace say which range of the program each operator runs in ("forward layers.3"), from now on.
void trace_ranges();

// One line, tab-separated: "cost", `name`, and what is known as key=value.
void trace_cost(const std::string& name, const Cost& cost, const Launches& made);

}  // namespace simulated_gpu
