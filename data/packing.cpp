#include "data/packing.h"

#include <algorithm>
#include <numeric>

namespace hyperion::data {
namespace {

// Fills the positions of the last row and drops its labels across documents.
void mask_documents(std::span<const DocumentSpan> spans, Batch& batch) {
  const size_t row = batch.positions.size(), end = batch.tokens.size();
  batch.positions.resize(end);
  size_t begin = row;  // of the document
  const auto number_document = [&](size_t next) {
    std::iota(batch.positions.begin() + static_cast<ptrdiff_t>(begin),
              batch.positions.begin() + static_cast<ptrdiff_t>(next), 0);
    begin = next;
  };
  for (const DocumentSpan& span : spans) {
    if (span.begin == 0) continue;
    batch.labels[row + span.begin - 1] = kIgnoreLabel;
    number_document(row + span.begin);
  }
  number_document(end);
}

}  // namespace

void append_row(std::span<const int64_t> tokens, std::span<const DocumentSpan> spans, bool document_mask,
                Batch& batch) {
  const size_t seq_len = static_cast<size_t>(batch.seq_len), end = batch.tokens.size() + seq_len;
  const auto inputs = tokens.first(std::min(seq_len, tokens.size()));
  const auto labels = tokens.subspan(std::min<size_t>(1, tokens.size()));
  batch.tokens.insert(batch.tokens.end(), inputs.begin(), inputs.end());
  batch.tokens.resize(end, 0);
  batch.labels.insert(batch.labels.end(), labels.begin(), labels.end());
  batch.labels.resize(end, kIgnoreLabel);
  const bool last_is_label = !spans.empty() && spans.back().begin == seq_len;
  batch.documents.emplace_back(spans.begin(), spans.end() - (last_is_label ? 1 : 0));
  if (document_mask) mask_documents(spans, batch);
  ++batch.rows;
}

PlaceRange places_of_row(const Batch& batch, size_t row) {
  const std::vector<DocumentSpan>& documents = batch.documents[row];
  return documents.empty() ? PlaceRange{} : PlaceRange{documents.front().place, documents.back().place};
}

void ignore_sequences_from(uint64_t end, Batch& batch) {
  const uint64_t kept = end - std::min(end, batch.first_sequence);
  const size_t first = static_cast<size_t>(std::min(kept, static_cast<uint64_t>(batch.rows)) *
                                           static_cast<uint64_t>(batch.seq_len));
  std::fill(batch.labels.begin() + static_cast<ptrdiff_t>(first), batch.labels.end(), kIgnoreLabel);
}

}  // namespace hyperion::data
