// Blocked attention on raw pointers: what one thread computes. cpu_blocks.cpp is compiled once
// for each instruction set, and models/kernels/attention/cpu.h chooses at run time. Nothing here includes or
// instantiates what another file could share with it: a function compiled for a newer processor must not be
// the one that the linker keeps for an older one.
#pragma once

#include <cstdint>

namespace hyperion::kernels::cpu {

// HeadStrides are the strides, in elements, of a tensor [batch, heads, tokens, head_dim], where tokens are
// queries or keys. The elements of a head are contiguous.
struct HeadStrides {
  int64_t batch, head, token;
};

struct AttentionShape {
  int64_t batch, heads, kv_heads, queries, keys, head_dim;
  float scale;
  bool causal;  // from the last key, with at least as many keys as queries; else queries attend to all keys
  // [batch, queries]: the first key that each may attend to, at most its last and never less than that of the
  // query before; null: the first of the row.
  const int32_t* first_keys;
  int64_t window;  // how many keys each attends to at most, the last ones; 0: all. Only where it is causal.
};

// A tensor of the call's element type.
struct HeadTensor {
  const void* data;
  HeadStrides strides;
};
struct HeadResult {
  void* data;
  HeadStrides strides;
};

struct ForwardCall {
  AttentionShape shape;
  HeadTensor q, k, v;
  HeadResult out;
  float* lse;  // [batch, heads, queries]: log of the sum of exponentials of the scaled scores
};

struct BackwardCall {
  AttentionShape shape;
  HeadTensor q, k, v, out, grad;
  const float* lse;
  HeadResult dq;
  // The query heads of one key-value head are divided into `parts` parts. With several, dk and dv are in
  // fp32 and have the gradients of each part alone, `part_stride` elements apart.
  int64_t parts;
  int64_t part_stride;
  HeadResult dk, dv;
};

// The first key that a query attends to. Static: each instruction set has its own.
[[maybe_unused]] static int64_t first_key_of(const AttentionShape& shape, int64_t batch, int64_t query) {
  const int64_t first = shape.window > 0 ? query + shape.keys - shape.queries + 1 - shape.window : int64_t{0};
  const int64_t of_document =
      shape.first_keys == nullptr ? 0 : shape.first_keys[batch * shape.queries + query];
  return first < of_document ? of_document : first;
}

// Queries are worked on in blocks of this many tokens of one head, in forward with as many keys at a time.
inline constexpr int64_t kQueryBlock = 64;

struct ElementKernels {
  // Floats of scratch, aligned to 64 bytes, that one thread needs.
  int64_t (*forward_scratch)(const AttentionShape& shape);
  int64_t (*backward_scratch)(const AttentionShape& shape);
  // Blocks [first, last) of queries, counted over batch, heads and the blocks of a row. What a block gives
  // does not depend on which others are computed with it.
  void (*forward)(const ForwardCall& call, int64_t first, int64_t last, float* scratch);
  // Key-value heads [first, last), counted over batch and kv_heads: their gradients and those of their
  // queries.
  void (*backward)(const BackwardCall& call, int64_t first, int64_t last, float* scratch);
};

struct AttentionBlocks {
  ElementKernels fp32, bf16;
};

const AttentionBlocks& attention_blocks_plain();
// These exist on x86-64 only.
const AttentionBlocks& attention_blocks_avx2();         // with FMA
const AttentionBlocks& attention_blocks_avx512();       // F, CD, BW, DQ and VL
const AttentionBlocks& attention_blocks_avx512_bf16();  // and BF16

}  // namespace hyperion::kernels::cpu
