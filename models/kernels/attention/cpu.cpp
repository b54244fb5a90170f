#include "models/kernels/attention/cpu.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <span>
#include <vector>

#include <fmt/ranges.h>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/record_function.h>

#include "base/device/parallel_for.h"
#include "base/error.h"
#include "base/processor.h"
#include "models/args/attention_heads.h"
#include "models/kernels/attention/cpu_blocks.h"
#include "models/kernels/common/scratch.h"

namespace hyperion::kernels::cpu {
namespace {

struct InstructionSet {
  Instructions instructions;
  std::string_view name;
  bool processor_has;
  bool chosen;  // where the processor has it and the user names none
  const AttentionBlocks& (*blocks)();
};

// Returns the instruction sets from the widest to the narrowest.
std::span<const InstructionSet> instruction_sets() {
#ifdef HYPERION_X86_64
  static const InstructionSet all[] = {
      {Instructions::kAvx512Bf16, "avx512_bf16", processor::has_avx512_bf16(),
       processor::has_fast_bf16_pairs(), attention_blocks_avx512_bf16},
      {Instructions::kAvx512, "avx512", processor::has_avx512(), true, attention_blocks_avx512},
      {Instructions::kAvx2, "avx2", processor::has_avx2(), true, attention_blocks_avx2},
      {Instructions::kNone, "none", true, true, attention_blocks_plain}};
#else
  static const InstructionSet all[] = {
      {Instructions::kAvx512Bf16, "avx512_bf16", false, false, attention_blocks_plain},
      {Instructions::kAvx512, "avx512", false, false, attention_blocks_plain},
      {Instructions::kAvx2, "avx2", false, false, attention_blocks_plain},
      {Instructions::kNone, "none", true, true, attention_blocks_plain}};
#endif
  return all;
}

const InstructionSet& set_of(Instructions instructions) {
  return *std::ranges::find(instruction_sets(), instructions, &InstructionSet::instructions);
}

Instructions choose_instructions() {
  const char* wanted = std::getenv("HYPERION_CPU_INSTRUCTIONS");
  std::vector<std::string_view> names;
  for (const InstructionSet& set : instruction_sets()) {
    const bool any = wanted == nullptr || *wanted == '\0';
    if ((any ? set.chosen : set.name == wanted) && set.processor_has) return set.instructions;
    if (!any && set.name == wanted)
      throw_config("HYPERION_CPU_INSTRUCTIONS is '{}', which this processor does not have: unset it", wanted);
    names.push_back(set.name);
  }
  throw_config("HYPERION_CPU_INSTRUCTIONS is '{}', expected one of {}", wanted, fmt::join(names, ", "));
}

// [batch, heads, tokens, head_dim] with the elements of a head behind each other.
at::Tensor with_whole_heads(const at::Tensor& t) {
  return t.stride(3) == 1 || t.size(3) == 1 ? t : t.contiguous();
}

HeadStrides strides_of(const at::Tensor& t) {
  return {t.stride(0), t.stride(1), t.stride(2)};
}
HeadTensor view(const at::Tensor& t) {
  return {t.const_data_ptr(), strides_of(t)};
}
HeadResult mutable_view(const at::Tensor& t) {
  return {t.mutable_data_ptr(), strides_of(t)};
}

at::Tensor empty_heads(const at::Tensor& like) {
  return at::empty({like.size(0), like.size(2), like.size(1), like.size(3)}, like.options()).transpose(1, 2);
}

AttentionShape shape_of(const at::Tensor& q, const at::Tensor& k, const AttentionMask& mask) {
  return {.batch = q.size(0),
          .heads = q.size(1),
          .kv_heads = k.size(1),
          .queries = q.size(2),
          .keys = k.size(2),
          .head_dim = q.size(3),
          .scale = static_cast<float>(1 / std::sqrt(static_cast<double>(q.size(3)))),
          .causal = mask.kind != MaskKind::kAllKeys,
          .first_keys = mask.has_documents() ? mask.first_keys.const_data_ptr<int32_t>() : nullptr,
          .window = mask.window};
}

const ElementKernels& kernels_for(const at::Tensor& t, Instructions instructions) {
  const AttentionBlocks& blocks = set_of(instructions).blocks();
  return t.scalar_type() == at::kBFloat16 ? blocks.bf16 : blocks.fp32;
}

// Calls run(first, last) for ranges of blocks of queries on several threads. A block costs what it has blocks
// of keys, and ranges are cut where costs are equal.
template <typename Run>
void for_query_blocks(const AttentionShape& shape, const Run& run) {
  const int64_t blocks = (shape.queries + kQueryBlock - 1) / kQueryBlock;
  // costs: of the blocks before each block of one head, [blocks + 1] for each sequence.
  std::vector<std::vector<int64_t>> costs(shape.batch, std::vector<int64_t>(blocks + 1));
  int64_t total = 0;
  for (int64_t batch = 0; batch < shape.batch; ++batch) {
    for (int64_t n = 0; n < blocks; ++n) {
      const int64_t begin = n * kQueryBlock, last_query = std::min(begin + kQueryBlock, shape.queries) - 1;
      const int64_t last_key = shape.causal ? last_query + shape.keys - shape.queries : shape.keys - 1;
      const int64_t first_key = first_key_of(shape, batch, begin);
      costs[batch][n + 1] = costs[batch][n] + last_key / kQueryBlock - first_key / kQueryBlock + 1;
    }
    total += shape.heads * costs[batch][blocks];
  }
  const auto first_from = [&](int64_t cost) {  // the first block that does not begin before this cost
    int64_t batch = 0;
    for (; batch < shape.batch && cost >= shape.heads * costs[batch][blocks]; ++batch)
      cost -= shape.heads * costs[batch][blocks];
    if (batch == shape.batch) return batch * shape.heads * blocks;
    const std::vector<int64_t>& of_row = costs[batch];
    const auto block = std::ranges::lower_bound(of_row, cost % of_row[blocks]) - of_row.begin();
    return (batch * shape.heads + cost / of_row[blocks]) * blocks + block;
  };
  constexpr int64_t kLeastCost = 8;  // for a thread
  parallel_for(0, total, kLeastCost, [&](int64_t begin, int64_t end) {
    if (const int64_t first = first_from(begin), last = first_from(end); first < last) run(first, last);
  });
}

// Returns into how many parts the query heads of a key-value head are divided, so that there are at least 16
// pieces of work if there are as many heads.
int64_t parts_of(const at::Tensor& q, const at::Tensor& k) {
  constexpr int64_t kPieces = 16;
  const int64_t heads = k.size(0) * k.size(1), group = q.size(1) / k.size(1);
  return std::min(group, (kPieces + heads - 1) / heads);
}

}  // namespace

std::string_view text_of(Instructions instructions) {
  return set_of(instructions).name;
}

bool processor_has(Instructions instructions) {
  return set_of(instructions).processor_has;
}

Instructions chosen_instructions() {
  static const Instructions chosen = choose_instructions();
  return chosen;
}

AttentionResult attention_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                  const AttentionMask& mask, Instructions instructions) {
  RECORD_FUNCTION("hyperion::attention",
                  std::vector<c10::IValue>({q, k, v, mask.kind != MaskKind::kAllKeys}));
  const at::Tensor queries = with_whole_heads(q), keys = with_whole_heads(k), values = with_whole_heads(v);
  const at::Tensor out = empty_heads(q);
  const at::Tensor lse = at::empty({q.size(0), q.size(1), q.size(2)}, q.options().dtype(at::kFloat));
  if (out.numel() == 0) return {out, lse, {}};
  const ForwardCall call{.shape = shape_of(q, k, mask),
                         .q = view(queries),
                         .k = view(keys),
                         .v = view(values),
                         .out = mutable_view(out),
                         .lse = lse.mutable_data_ptr<float>()};
  const ElementKernels& kernels = kernels_for(q, instructions);
  for_query_blocks(call.shape, [&](int64_t first, int64_t last) {
    kernels.forward(call, first, last, thread_scratch(kernels.forward_scratch(call.shape)));
  });
  return {out, lse, {}};
}

AttentionGradients attention_backward(const at::Tensor& grad_output, const at::Tensor& q, const at::Tensor& k,
                                      const at::Tensor& v, const AttentionMask& mask,
                                      const AttentionResult& result, Instructions instructions) {
  RECORD_FUNCTION("hyperion::attention_backward",
                  std::vector<c10::IValue>({grad_output, q, k, v, mask.kind != MaskKind::kAllKeys}));
  const at::Tensor queries = with_whole_heads(q), keys = with_whole_heads(k), values = with_whole_heads(v),
                   out = with_whole_heads(result.output), grad = with_whole_heads(grad_output),
                   lse = result.lse.contiguous();
  if (q.numel() == 0) return {empty_heads(q), empty_heads(k).zero_(), empty_heads(v).zero_()};
  // A key-value head's gradients are sums over its queries, which one thread adds up in their order. Where
  // there are few such heads, their queries' heads are divided, by the shape alone, and the parts added up in
  // order.
  const int64_t parts = parts_of(q, k);
  const auto sums_of = [&](const at::Tensor& t) {  // [parts, batch, keys, kv_heads, head_dim]
    return at::empty({parts, t.size(0), t.size(2), t.size(1), t.size(3)}, t.options().dtype(at::kFloat));
  };
  const at::Tensor dk = parts == 1 ? empty_heads(k) : sums_of(k),
                   dv = parts == 1 ? empty_heads(v) : sums_of(v);
  const at::Tensor dq = empty_heads(q);
  const auto first_of = [&](const at::Tensor& t) { return parts == 1 ? t : t[0].transpose(1, 2); };
  const BackwardCall call{.shape = shape_of(q, k, mask),
                          .q = view(queries),
                          .k = view(keys),
                          .v = view(values),
                          .out = view(out),
                          .grad = view(grad),
                          .lse = lse.const_data_ptr<float>(),
                          .dq = mutable_view(dq),
                          .parts = parts,
                          .part_stride = k.numel(),
                          .dk = mutable_view(first_of(dk)),
                          .dv = mutable_view(first_of(dv))};
  const ElementKernels& kernels = kernels_for(q, instructions);
  parallel_for(0, call.shape.batch * call.shape.kv_heads * parts, 1, [&](int64_t first, int64_t last) {
    kernels.backward(call, first, last, thread_scratch(kernels.backward_scratch(call.shape)));
  });
  if (parts == 1) return {dq, dk, dv};
  const auto added_up = [&](const at::Tensor& t) { return t.sum(0).to(q.scalar_type()).transpose(1, 2); };
  return {dq, added_up(dk), added_up(dv)};
}

}  // namespace hyperion::kernels::cpu
