#include "data/packing.h"

#include <algorithm>
#include <iterator>

namespace hyperion::data {
namespace {

// The parts of `spans` in each row, counted from the row's first token.
std::vector<std::vector<DocumentSpan>> documents_of_rows(std::span<const DocumentSpan> spans, size_t tokens,
                                                         int64_t rows, size_t seq_len) {
  std::vector<std::vector<DocumentSpan>> documents(static_cast<size_t>(rows));
  size_t first = 0;
  for (size_t row = 0; row < documents.size() && row * seq_len < tokens; ++row) {
    const size_t begin = row * seq_len;
    while (first + 1 < spans.size() && spans[first + 1].begin <= begin) ++first;
    for (size_t i = first; i < spans.size() && (i == first || spans[i].begin < begin + seq_len); ++i) {
      const size_t at = std::max(spans[i].begin, begin);
      documents[row].push_back({at - begin, spans[i].place, spans[i].offset + (at - spans[i].begin)});
    }
  }
  return documents;
}

void mask_documents(std::span<const DocumentSpan> spans, Batch& batch) {
  for (const DocumentSpan& span : spans) {
    if (span.begin > 0 && span.begin <= batch.labels.size()) batch.labels[span.begin - 1] = kIgnoreLabel;
  }
  batch.positions.resize(batch.tokens.size());
  const size_t seq_len = static_cast<size_t>(batch.seq_len);
  size_t next = 0;  // the first span that begins after token i - 1
  size_t begin = 0;
  for (size_t i = 0; i < batch.tokens.size(); ++i) {
    const bool new_row = i % seq_len == 0;
    bool new_document = false;
    for (; next < spans.size() && spans[next].begin <= i; ++next) new_document = true;
    if (new_row || new_document) begin = i;
    batch.positions[i] = static_cast<int32_t>(i - begin);
  }
}

}  // namespace

Batch pack(std::span<const int64_t> tokens, std::span<const DocumentSpan> spans, int64_t rows,
           int64_t seq_len, bool document_mask) {
  Batch batch;
  batch.rows = rows;
  batch.seq_len = seq_len;
  const size_t size = static_cast<size_t>(rows * seq_len);
  const size_t inputs = std::min(size, tokens.size());
  const size_t labels = tokens.empty() ? 0 : std::min(size, tokens.size() - 1);
  batch.tokens.assign(tokens.begin(), tokens.begin() + static_cast<ptrdiff_t>(inputs));
  batch.tokens.resize(size, 0);
  if (labels > 0)
    batch.labels.assign(tokens.begin() + 1, tokens.begin() + 1 + static_cast<ptrdiff_t>(labels));
  batch.labels.resize(size, kIgnoreLabel);
  batch.documents = documents_of_rows(spans, inputs, rows, static_cast<size_t>(seq_len));
  if (document_mask) mask_documents(spans, batch);
  return batch;
}

PlaceRange places_of_row(const Batch& batch, size_t row) {
  const std::vector<DocumentSpan>& documents = batch.documents[row];
  return documents.empty() ? PlaceRange{} : PlaceRange{documents.front().place, documents.back().place};
}

void append_rows(Batch more, Batch& batch) {
  const auto append = [](auto& from, auto& to) {
    to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
  };
  batch.rows += more.rows;
  append(more.tokens, batch.tokens);
  append(more.labels, batch.labels);
  append(more.positions, batch.positions);
  append(more.documents, batch.documents);
  append(more.source_of_row, batch.source_of_row);
}

void ignore_sequences_from(uint64_t end, Batch& batch) {
  const uint64_t kept = end - std::min(end, batch.first_sequence);
  const size_t first = static_cast<size_t>(std::min(kept, static_cast<uint64_t>(batch.rows)) *
                                           static_cast<uint64_t>(batch.seq_len));
  std::fill(batch.labels.begin() + static_cast<ptrdiff_t>(first), batch.labels.end(), kIgnoreLabel);
}

}  // namespace hyperion::data
