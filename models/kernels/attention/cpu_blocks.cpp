// Compiled once for each instruction set, HYPERION_ATTENTION_BLOCKS names the function: see
// cpu_blocks.h.
//
// Scores of a block are computed transposed, keys in rows and queries in lanes, so that the maximum, the sum
// and the exponentials of a query need nothing from other lanes. The products that follow read them as the
// operand whose numbers are broadcast, and their results have the head dimension in lanes, as tensors have
// it.
#include "models/kernels/attention/cpu_blocks.h"

#include "models/args/attention_heads.h"
#include "models/kernels/common/packing.h"
#include "models/kernels/common/products.h"
#include "models/kernels/common/vectors.h"

namespace hyperion::kernels::cpu {
namespace {

constexpr float kLog2OfE = 1.44269504F, kLargest = 3.402823466e38F;
constexpr int64_t kStep = kHeadMultiple;  // lanes and rows of products are multiples of it

int64_t up_to(int64_t n, int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

void fill(float* numbers, int64_t count, float value) {
  for (int64_t i = 0; i < count; ++i) numbers[i] = value;
}

// Pieces of a scratch, each of whole cache lines; without one it counts what they need.
struct Pieces {
  float* scratch;
  int64_t used = 0;

  template <typename T = float>
  T* take(int64_t count) {
    static_assert(sizeof(T) == sizeof(float));
    T* piece = scratch == nullptr ? nullptr : reinterpret_cast<T*>(scratch + used);
    used += up_to(count, 16);
    return piece;
  }
};

template <typename Element>
Element* address(void* data, const HeadStrides& strides, int64_t batch, int64_t head) {
  return static_cast<Element*>(data) + batch * strides.batch + head * strides.head;
}

// Returns tokens [begin, begin + count) of one head, or fewer at the row's end.
template <typename Element>
Rows<Element> rows_of(const HeadTensor& tensor, int64_t tokens, int64_t head_dim, int64_t batch, int64_t head,
                      int64_t begin, int64_t count) {
  const auto* first = static_cast<const Element*>(tensor.data) + batch * tensor.strides.batch +
                      head * tensor.strides.head + begin * tensor.strides.token;
  const int64_t left = tokens - begin;
  return {first, tensor.strides.token, left < count ? left : count, head_dim};
}

// The last key of query 0, where attention is causal.
int64_t first_diagonal(const AttentionShape& shape) {
  return shape.keys - shape.queries;
}

// Returns the end of the keys that a block of queries attends to.
int64_t end_of_keys(const AttentionShape& shape, int64_t begin) {
  const int64_t end = begin + kQueryBlock + first_diagonal(shape);
  return shape.causal && end < shape.keys ? end : shape.keys;
}

// KeyRange holds the keys that the queries of a block may attend to.
struct KeyRange {
  int32_t last_key[kQueryBlock], first_key[kQueryBlock];

  KeyRange(const AttentionShape& shape, int64_t batch, int64_t begin) {
    for (int64_t i = 0; i < kQueryBlock; ++i) {
      const int64_t query = begin + i < shape.queries ? begin + i : shape.queries - 1;
      last_key[i] = static_cast<int32_t>(shape.causal ? begin + i + first_diagonal(shape) : shape.keys - 1);
      first_key[i] = static_cast<int32_t>(first_key_of(shape, batch, query));
    }
  }

  // scores [keys][kQueryBlock] of keys from `key` on: -infinity where queries [lane, lane + lanes) may not
  // attend.
  void mask(float* scores, int64_t key, int64_t keys, int64_t lane, int64_t lanes) const {
    if (key + keys - 1 <= last_key[lane] && first_key[lane + lanes - 1] <= key) return;
    for (int64_t i = lane; i < lane + lanes; i += kLanes) {
      const Ints lasts = load_ints(last_key + i), firsts = load_ints(first_key + i);
      for (int64_t k = 0; k < keys; ++k) {
        const auto at = static_cast<int32_t>(key + k);
        const Ints allowed = (lasts >= at) & (firsts <= at);
        float* score = scores + k * kQueryBlock + i;
        store(score, allowed ? load(score) : all(-kInfinity));
      }
    }
  }
};

// ---- Forward
// ------------------------------------------------------------------------------------------------

constexpr int64_t kKeys = kQueryBlock;  // of a block

template <typename U>
struct ForwardScratch {
  typename U::Unit *k_rows,
      *v_pairs;               // of a key-value head: [keys][width / kPerUnit], [keys / kPerUnit][width]
  typename U::Unit* q_lanes;  // [width / kPerUnit][kQueryBlock]
  float* scores;              // [kKeys][kQueryBlock]
  float* out;                 // [kQueryBlock][width]
  float *maximum, *total, *correction;  // [kQueryBlock]
  int64_t floats;

  ForwardScratch(const AttentionShape& shape, float* scratch) {
    const int64_t width = up_to(shape.head_dim, kStep),
                  units = up_to(shape.keys, kKeys) * width / U::kPerUnit;
    Pieces pieces{scratch};
    k_rows = pieces.take<typename U::Unit>(units);
    v_pairs = pieces.take<typename U::Unit>(units);
    q_lanes = pieces.take<typename U::Unit>(width / U::kPerUnit * kQueryBlock);
    scores = pieces.take(kKeys * kQueryBlock);
    out = pieces.take(kQueryBlock * width);
    maximum = pieces.take(kQueryBlock);
    total = pieces.take(kQueryBlock);
    correction = pieces.take(kQueryBlock);
    floats = pieces.used;
  }
};

// Two rows of exponentials as the operand of a product whose depth are the rows: where the two rows of scores
// were, the second row's place is left free.
HYPERION_INLINE void store_rows(SingleFloats, float* scores, Floats even, Floats odd) {
  store(scores, even);
  store(scores + kQueryBlock, odd);
}
#ifdef __AVX512BF16__
HYPERION_INLINE void store_rows(Bf16Pairs, float* scores, Floats even, Floats odd) {
  const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7,
                                         22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  _mm512_storeu_si512(scores, _mm512_permutexvar_epi16(order, to_bf16(even, odd)));
}
#endif

// Scores [keys][kQueryBlock] of queries [lane, lane + kStep) become exponentials. `factor`: of the exponent,
// which is to the base 2.
template <typename U>
void softmax(const ForwardScratch<U>& in, int64_t lane, int64_t keys, float factor) {
  for (int64_t i = lane; i < lane + kStep; i += kLanes) {
    float* scores = in.scores + i;
    const Floats before = load(in.maximum + i);
    Floats even = before, odd = before;
    for (int64_t k = 0; k < keys; k += 2) {
      even = larger(even, load(scores + k * kQueryBlock));
      odd = larger(odd, load(scores + (k + 1) * kQueryBlock));
    }
    const Floats maximum = larger(even, odd), shift = maximum * factor;
    Floats even_sum{}, odd_sum{};
    for (int64_t k = 0; k < keys; k += 2) {
      float* row = scores + k * kQueryBlock;
      const Floats a = exp2_of<U::kDegree>(load(row) * factor - shift);
      const Floats b = exp2_of<U::kDegree>(load(row + kQueryBlock) * factor - shift);
      even_sum += a;
      odd_sum += b;
      store_rows(U(), row, a, b);
    }
    const Floats correction = exp2_of<U::kDegree>((before - maximum) * factor);
    store(in.maximum + i, maximum);
    store(in.correction + i, correction);
    store(in.total + i, load(in.total + i) * correction + (even_sum + odd_sum));
  }
}

// Attends to one block of keys. `diagonal`: query i of the block sees keys 0 to i of it; products and
// exponentials above the diagonal are left out in steps of kStep.
template <typename U, Start kStart>
void attend(const ForwardScratch<U>& in, const KeyRange& reach, int64_t key, int64_t width, float factor,
            bool diagonal) {
  using Unit = typename U::Unit;
  const int64_t depth = width / U::kPerUnit;
  const Unit* k_rows = in.k_rows + key * depth;
  const Unit* v_pairs = in.v_pairs + key / U::kPerUnit * width;
  const auto* weights = reinterpret_cast<const Unit*>(in.scores);
  const int64_t steps = diagonal ? kQueryBlock / kStep : 1, rows = diagonal ? kStep : kKeys;
  for (int64_t step = 0; step < steps; ++step) {
    const int64_t at = step * kStep;
    product<U, Layout::kAlongDepth, Start::kZero>({in.q_lanes + at, kQueryBlock, k_rows + at * depth, depth,
                                                   depth, in.scores + at * kQueryBlock + at, kQueryBlock},
                                                  kQueryBlock - at, rows);
  }
  for (int64_t lane = 0; lane < kQueryBlock; lane += kStep) {
    const int64_t keys = diagonal ? lane + kStep : kKeys;
    reach.mask(in.scores, key, keys, lane, kStep);
    softmax(in, lane, keys, factor);
  }
  for (int64_t step = 0; step < steps; ++step) {
    const int64_t at = step * kStep, keys = diagonal ? at + kStep : kKeys;
    product<U, Layout::kAlongRows, kStart, kQueryBlock * U::kPerUnit>(
        {v_pairs, width, weights + at, 0, keys / U::kPerUnit, in.out + at * width, width, in.correction + at},
        width, diagonal ? kStep : kQueryBlock);
  }
}

template <typename U, typename Element>
void forward(const ForwardCall& call, int64_t first, int64_t last, float* scratch) {
  const AttentionShape& shape = call.shape;
  const ForwardScratch<U> in(shape, scratch);
  const int64_t width = up_to(shape.head_dim, kStep), group = shape.heads / shape.kv_heads;
  const int64_t blocks = up_to(shape.queries, kQueryBlock) / kQueryBlock;
  const float factor = shape.scale * kLog2OfE;
  int64_t packed_head = -1, packed_first = 0, packed = 0;  // keys [packed_first, packed) of this head
  for (int64_t item = first; item < last; ++item) {
    const int64_t begin = item % blocks * kQueryBlock, head = item / blocks % shape.heads,
                  batch = item / blocks / shape.heads, kv_head = head / group,
                  end = end_of_keys(shape, begin);
    const KeyRange reach(shape, batch, begin);
    const int64_t first_block = reach.first_key[0] / kKeys * kKeys;
    if (batch * shape.kv_heads + kv_head != packed_head || first_block < packed_first)
      packed = packed_first = first_block;
    packed_head = batch * shape.kv_heads + kv_head;
    for (; packed < end; packed += kKeys) {
      const auto rows = [&](const HeadTensor& tensor) {
        return rows_of<Element>(tensor, shape.keys, shape.head_dim, batch, kv_head, packed, kKeys);
      };
      pack_rows<U, Element>(rows(call.k), kKeys, width, in.k_rows + packed * width / U::kPerUnit);
      pack_row_pairs<U, Element>(rows(call.v), kKeys, width, in.v_pairs + packed / U::kPerUnit * width);
    }
    const Rows<Element> queries =
        rows_of<Element>(call.q, shape.queries, shape.head_dim, batch, head, begin, kQueryBlock);
    pack_lanes<U, Element>(queries, kQueryBlock, width, in.q_lanes);
    fill(in.maximum, kQueryBlock, -kLargest / 2);  // times the factor, at most kLog2OfE, it stays finite
    fill(in.total, kQueryBlock, 0);
    for (int64_t key = first_block; key < end; key += kKeys) {
      const bool diagonal = shape.causal && key == begin + first_diagonal(shape);
      key == first_block ? attend<U, Start::kZero>(in, reach, key, width, factor, diagonal)
                         : attend<U, Start::kAddScaled>(in, reach, key, width, factor, diagonal);
    }
    Element* out =
        address<Element>(call.out.data, call.out.strides, batch, head) + begin * call.out.strides.token;
    float* lse = call.lse + (batch * shape.heads + head) * shape.queries + begin;
    for (int64_t i = 0; i < queries.count; ++i) {
      put_row(in.out + i * width, 1.0F / in.total[i], shape.head_dim, out + i * call.out.strides.token);
      lse[i] = in.maximum[i] * shape.scale + __builtin_logf(in.total[i]);
    }
  }
}

// ---- Backward
// -----------------------------------------------------------------------------------------------

constexpr int64_t kKeysBackward = 32;  // of a block: what it needs fits the first cache

template <typename U>
struct BackwardScratch {
  using Unit = typename U::Unit;
  Unit *k_rows, *k_pairs, *v_rows;                    // of a key-value head, as in ForwardScratch
  float *dk, *dv;                                     // of it: [keys][width]
  Unit *q_lanes, *grad_lanes, *q_pairs, *grad_pairs;  // of a block of queries
  float *scores, *dscores;                            // [kKeysBackward][kQueryBlock]
  Unit* dscore_pairs;                                 // [kKeysBackward / kPerUnit][kQueryBlock]
  float* dq;                                          // [kQueryBlock][width]
  float *lse, *delta;                                 // [kQueryBlock]: lse to the base 2
  int64_t floats;

  BackwardScratch(const AttentionShape& shape, float* scratch) {
    const int64_t width = up_to(shape.head_dim, kStep), keys = up_to(shape.keys, kQueryBlock) * width;
    Pieces pieces{scratch};
    k_rows = pieces.take<Unit>(keys / U::kPerUnit);
    k_pairs = U::kPerUnit == 1 ? k_rows : pieces.take<Unit>(keys / U::kPerUnit);
    v_rows = pieces.take<Unit>(keys / U::kPerUnit);
    dk = pieces.take(keys);
    dv = pieces.take(keys);
    q_lanes = pieces.take<Unit>(kQueryBlock * width / U::kPerUnit);
    grad_lanes = pieces.take<Unit>(kQueryBlock * width / U::kPerUnit);
    q_pairs = pieces.take<Unit>(kQueryBlock * width / U::kPerUnit);
    grad_pairs = pieces.take<Unit>(kQueryBlock * width / U::kPerUnit);
    scores = pieces.take(kKeysBackward * kQueryBlock);
    dscores = pieces.take(kKeysBackward * kQueryBlock);
    dscore_pairs = U::kPerUnit == 1 ? reinterpret_cast<Unit*>(dscores)
                                    : pieces.take<Unit>(kKeysBackward / U::kPerUnit * kQueryBlock);
    dq = pieces.take(kQueryBlock * width);
    lse = pieces.take(kQueryBlock);
    delta = pieces.take(kQueryBlock);
    floats = pieces.used;
  }
};

// Queries from `lane` on: scores become the softmax and dscores, which hold the gradient of it, the gradient
// of the scores before they were scaled, each rounded to units along the queries; and the latter also to
// units along the keys.
HYPERION_INLINE void softmax_backward(const BackwardScratch<SingleFloats>& in, int64_t lane, float factor) {
  for (int64_t i = lane; i < kQueryBlock; i += kLanes) {
    const Floats lse = load(in.lse + i), delta = load(in.delta + i);
    for (int64_t k = 0; k < kKeysBackward; ++k) {
      float *score = in.scores + k * kQueryBlock + i, *dscore = in.dscores + k * kQueryBlock + i;
      const Floats p = exp2_of<SingleFloats::kDegree>(load(score) * factor - lse);
      store(score, p);
      store(dscore, p * (load(dscore) - delta));
    }
  }
}
#ifdef __AVX512BF16__
HYPERION_INLINE void softmax_backward(const BackwardScratch<Bf16Pairs>& in, int64_t lane, float factor) {
  for (int64_t i = lane; i < kQueryBlock; i += 2 * kLanes) {
    const Floats lse[2] = {load(in.lse + i), load(in.lse + i + kLanes)};
    const Floats delta[2] = {load(in.delta + i), load(in.delta + i + kLanes)};
    for (int64_t k = 0; k < kKeysBackward; k += 2) {
      __m512i rounded[2];
#pragma GCC unroll 2
      for (int r = 0; r < 2; ++r) {
        float *scores = in.scores + (k + r) * kQueryBlock, *dscores = in.dscores + (k + r) * kQueryBlock;
        Floats p[2], d[2];
#pragma GCC unroll 2
        for (int v = 0; v < 2; ++v) {
          const int64_t at = i + v * kLanes;
          p[v] = exp2_of<Bf16Pairs::kDegree>(load(scores + at) * factor - lse[v]);
          d[v] = p[v] * (load(dscores + at) - delta[v]);
        }
        // 32 queries take the room of 16 scores, which are those that have been read
        _mm512_storeu_si512(scores + i / 2, to_bf16(p[0], p[1]));
        rounded[r] = to_bf16(d[0], d[1]);
        _mm512_storeu_si512(dscores + i / 2, rounded[r]);
      }
      uint32_t* pairs = in.dscore_pairs + k / 2 * kQueryBlock + i;
      const RowPairs both = pairs_of_rows(rounded[0], rounded[1]);
      _mm512_storeu_si512(pairs, both.first);
      _mm512_storeu_si512(pairs + kLanes, both.last);
    }
  }
}
#endif

// Adds the gradients of one block of keys and one of queries, of which those from `lane` on attend to some of
// the keys.
template <typename U>
void attend_backward(const BackwardScratch<U>& in, const KeyRange& reach, int64_t key, int64_t lane,
                     int64_t width, float factor) {
  using Unit = typename U::Unit;
  const int64_t depth = width / U::kPerUnit, lanes = kQueryBlock - lane, queries = lanes / U::kPerUnit;
  product<U, Layout::kAlongDepth, Start::kZero>(
      {in.q_lanes + lane, kQueryBlock, in.k_rows + key * depth, depth, depth, in.scores + lane, kQueryBlock},
      lanes, kKeysBackward);
  product<U, Layout::kAlongDepth, Start::kZero>({in.grad_lanes + lane, kQueryBlock, in.v_rows + key * depth,
                                                 depth, depth, in.dscores + lane, kQueryBlock},
                                                lanes, kKeysBackward);
  for (int64_t at = lane; at < kQueryBlock; at += kKeysBackward)
    reach.mask(in.scores, key, kKeysBackward, at, kKeysBackward);
  softmax_backward(in, lane, factor);
  const int64_t from = lane / U::kPerUnit;
  product<U, Layout::kAlongDepth, Start::kAdd, kQueryBlock>(
      {in.grad_pairs + from * width, width, reinterpret_cast<const Unit*>(in.scores) + from, 0, queries,
       in.dv + key * width, width},
      width, kKeysBackward);
  product<U, Layout::kAlongDepth, Start::kAdd, kQueryBlock>(
      {in.q_pairs + from * width, width, reinterpret_cast<const Unit*>(in.dscores) + from, 0, queries,
       in.dk + key * width, width},
      width, kKeysBackward);
  product<U, Layout::kAlongRows, Start::kAdd, kQueryBlock>(
      {in.k_pairs + key / U::kPerUnit * width, width, in.dscore_pairs + lane, 0, kKeysBackward / U::kPerUnit,
       in.dq + lane * width, width},
      width, lanes);
}

// sums [keys][width] of a head times `factor`.
template <typename Element>
void put_rows(const float* sums, int64_t width, const AttentionShape& shape, float factor, Element* to,
              int64_t stride) {
  for (int64_t i = 0; i < shape.keys; ++i) put_row(sums + i * width, factor, shape.head_dim, to + i * stride);
}

template <typename U, typename Element>
void backward(const BackwardCall& call, int64_t first, int64_t last, float* scratch) {
  const AttentionShape& shape = call.shape;
  const BackwardScratch<U> in(shape, scratch);
  const int64_t width = up_to(shape.head_dim, kStep), group = shape.heads / shape.kv_heads;
  const int64_t padded = up_to(shape.keys, kQueryBlock);
  const float factor = shape.scale * kLog2OfE;
  for (int64_t item = first; item < last; ++item) {
    const int64_t part = item % call.parts, kv_head = item / call.parts % shape.kv_heads,
                  batch = item / call.parts / shape.kv_heads;
    const auto of_keys = [&](const HeadTensor& tensor) {
      return rows_of<Element>(tensor, shape.keys, shape.head_dim, batch, kv_head, 0, shape.keys);
    };
    const Rows<Element> keys = of_keys(call.k), values = of_keys(call.v);
    pack_rows<U, Element>(keys, padded, width, in.k_rows);
    if (U::kPerUnit > 1) pack_row_pairs<U, Element>(keys, padded, width, in.k_pairs);
    pack_rows<U, Element>(values, padded, width, in.v_rows);
    fill(in.dk, padded * width, 0);
    fill(in.dv, padded * width, 0);
    const int64_t first_head = kv_head * group + part * group / call.parts,
                  last_head = kv_head * group + (part + 1) * group / call.parts;
    for (int64_t head = first_head; head < last_head; ++head)
      for (int64_t begin = 0; begin < shape.queries; begin += kQueryBlock) {
        const auto of_block = [&](const HeadTensor& tensor) {
          return rows_of<Element>(tensor, shape.queries, shape.head_dim, batch, head, begin, kQueryBlock);
        };
        const Rows<Element> queries = of_block(call.q), grads = of_block(call.grad),
                            outs = of_block(call.out);
        pack_lanes<U, Element>(queries, kQueryBlock, width, in.q_lanes);
        pack_lanes<U, Element>(grads, kQueryBlock, width, in.grad_lanes);
        pack_row_pairs<U, Element>(queries, kQueryBlock, width, in.q_pairs);
        pack_row_pairs<U, Element>(grads, kQueryBlock, width, in.grad_pairs);
        const float* lse = call.lse + (batch * shape.heads + head) * shape.queries + begin;
        for (int64_t i = 0; i < kQueryBlock; ++i) {
          const bool exists = i < queries.count;  // else its softmax is 0
          in.lse[i] = exists ? lse[i] * kLog2OfE : kLargest;
          in.delta[i] =
              exists ? dot(grads.data + i * grads.stride, outs.data + i * outs.stride, shape.head_dim) : 0;
        }
        const KeyRange reach(shape, batch, begin);
        fill(in.dq, kQueryBlock * width, 0);
        const int64_t first_block = reach.first_key[0] / kKeysBackward * kKeysBackward;
        const int64_t end = end_of_keys(shape, begin), diagonal = begin + first_diagonal(shape);
        for (int64_t key = first_block; key < end; key += kKeysBackward) {
          const bool above = shape.causal && key > diagonal;  // for the first queries of the block
          const int64_t lane = above ? (key - diagonal) / kKeysBackward * kKeysBackward : 0;
          attend_backward(in, reach, key, lane, width, factor);
        }
        Element* dq =
            address<Element>(call.dq.data, call.dq.strides, batch, head) + begin * call.dq.strides.token;
        for (int64_t i = 0; i < queries.count; ++i)
          put_row(in.dq + i * width, shape.scale, shape.head_dim, dq + i * call.dq.strides.token);
      }
    if (call.parts == 1) {
      put_rows(in.dk, width, shape, shape.scale,
               address<Element>(call.dk.data, call.dk.strides, batch, kv_head), call.dk.strides.token);
      put_rows(in.dv, width, shape, 1.0F, address<Element>(call.dv.data, call.dv.strides, batch, kv_head),
               call.dv.strides.token);
    } else {
      const int64_t at = part * call.part_stride;
      put_rows(in.dk, width, shape, shape.scale,
               address<float>(call.dk.data, call.dk.strides, batch, kv_head) + at, call.dk.strides.token);
      put_rows(in.dv, width, shape, 1.0F, address<float>(call.dv.data, call.dv.strides, batch, kv_head) + at,
               call.dv.strides.token);
    }
  }
}

template <typename U, typename Element>
ElementKernels kernels_of() {
  const auto forward_scratch = [](const AttentionShape& shape) {
    return ForwardScratch<U>(shape, nullptr).floats;
  };
  const auto backward_scratch = [](const AttentionShape& shape) {
    return BackwardScratch<U>(shape, nullptr).floats;
  };
  return {forward_scratch, backward_scratch, forward<U, Element>, backward<U, Element>};
}

#ifdef __AVX512BF16__
using UnitsOfBf16 = Bf16Pairs;
#else
using UnitsOfBf16 = SingleFloats;
#endif

}  // namespace

const AttentionBlocks& HYPERION_ATTENTION_BLOCKS() {
  static const AttentionBlocks blocks = {kernels_of<SingleFloats, float>(), kernels_of<UnitsOfBf16, Bf16>()};
  return blocks;
}

}  // namespace hyperion::kernels::cpu
