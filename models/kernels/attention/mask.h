// The attention mask: which keys each query attends to.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

namespace hyperion::kernels {

// The kinds of masks, by which a kernel is chosen (AttentionKernel in models/kernels/attention/attention.h).
enum class MaskKind {
  // Query i of n sees keys 0 to i + (keys - n). The last query sees the last key, and there are no fewer keys
  // than queries.
  kCausal,
  kDocuments,  // causal, inside the documents that are packed into the rows of a batch
  kAllKeys,    // all keys, of which there is at least one
};

// The mask of one call. A default one is causal.
struct AttentionMask {
  MaskKind kind = MaskKind::kCausal;
  // Documents on a CPU: int32 [batch, queries], the first key of each query's document, an index of the given
  // keys.
  at::Tensor first_keys{};
  // Documents on a GPU: int32 [documents + 1], where the queries and the keys of each begin, counted over all
  // rows, and the number of queries and keys. The last query of a document sees its last key; keys that no
  // query sees are documents without queries.
  at::Tensor query_bounds{}, key_bounds{};
  int64_t max_queries = 0, max_keys = 0;  // of one document
  // The largest number of keys that a query sees: its last one and those right before it; 0: all. kAllKeys
  // has none.
  int64_t window = 0;

  bool has_documents() const { return kind == MaskKind::kDocuments; }
};

// The mask of queries [first, end) of every row, 0 <= first < end <= seq, which attend to keys [0, end).
// positions: int32 [batch, seq] on the CPU, counted inside each document; each row begins with 0. On a GPU
// the result is copied without waiting for it.
AttentionMask document_mask(const at::Tensor& positions, int64_t first, int64_t end, at::Device device);
// The mask of complete rows.
AttentionMask document_mask(const at::Tensor& positions, at::Device device);
// AttentionMask::query_bounds and key_bounds of document_mask(), on the host.
struct DocumentBounds {
  std::vector<int32_t> queries, keys;
};
DocumentBounds document_bounds(const at::Tensor& positions, int64_t first, int64_t end);

}  // namespace hyperion::kernels
