#include "data/packing.h"

#include <algorithm>
#include <iterator>

namespace hyperion::data {
namespace {

std::vector<PlaceRange> row_sources(std::span<const DocumentSpan> spans, size_t tokens, int64_t rows,
                                    size_t seq_len) {
  std::vector<PlaceRange> sources;
  size_t first = 0;
  for (int64_t row = 0; row < rows; ++row) {
    const size_t begin = static_cast<size_t>(row) * seq_len;
    if (begin >= tokens) {
      sources.emplace_back();
      continue;
    }
    while (first + 1 < spans.size() && spans[first + 1].begin <= begin) ++first;
    size_t last = first;
    while (last + 1 < spans.size() && spans[last + 1].begin < begin + seq_len) ++last;
    sources.push_back({spans[first].place, spans[last].place});
  }
  return sources;
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
  batch.sources = row_sources(spans, inputs, rows, static_cast<size_t>(seq_len));
  if (document_mask) mask_documents(spans, batch);
  return batch;
}

void append_rows(Batch more, Batch& batch) {
  const auto append = [](auto& from, auto& to) {
    to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
  };
  batch.rows += more.rows;
  append(more.tokens, batch.tokens);
  append(more.labels, batch.labels);
  append(more.positions, batch.positions);
  append(more.sources, batch.sources);
  append(more.source_of_row, batch.source_of_row);
}

void ignore_sequences_from(uint64_t end, Batch& batch) {
  const uint64_t kept = end - std::min(end, batch.first_sequence);
  const size_t first = static_cast<size_t>(std::min(kept, static_cast<uint64_t>(batch.rows)) *
                                           static_cast<uint64_t>(batch.seq_len));
  std::fill(batch.labels.begin() + static_cast<ptrdiff_t>(first), batch.labels.end(), kIgnoreLabel);
}

}  // namespace hyperion::data
