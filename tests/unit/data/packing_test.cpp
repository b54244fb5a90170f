#include "data/packing.h"

#include <algorithm>

#include <catch2/catch.hpp>

#include "data/sources.h"

namespace hyperion::data {
namespace {

DocumentPlace at(uint64_t line) {
  static const CorpusFile file{.path = "f", .name = "f", .size = 1, .format = CorpusFormat::kText};
  return {&file, line};
}

std::string rows_of(const Batch& batch) {
  std::vector<PlaceRange> rows;
  for (size_t row = 0; row < batch.documents.size(); ++row) rows.push_back(places_of_row(batch, row));
  return describe(rows);
}

// Rows of a long window.
Batch pack(std::span<const int64_t> tokens, const std::vector<DocumentSpan>& pieces, int64_t rows,
           int64_t seq_len, bool document_mask) {
  Batch batch;
  batch.seq_len = seq_len;
  const size_t length = static_cast<size_t>(seq_len);
  for (size_t row = 0; row < static_cast<size_t>(rows); ++row) {
    const size_t begin = std::min(row * length, tokens.size());
    const auto window = tokens.subspan(begin, std::min(length + 1, tokens.size() - begin));
    std::vector<DocumentSpan> spans;
    for (size_t i = 0; i < pieces.size(); ++i) {
      const size_t end = i + 1 < pieces.size() ? pieces[i + 1].begin : tokens.size();
      if (end > begin && pieces[i].begin < begin + window.size())
        spans.push_back({std::max(pieces[i].begin, begin) - begin, pieces[i].place});
    }
    append_row(window, spans, document_mask, batch);
  }
  return batch;
}

}  // namespace

using I64 = std::vector<int64_t>;
using I32 = std::vector<int32_t>;

TEST_CASE("sequences from a given one on have no labels") {
  for (const auto& [end, kept] :
       std::vector<std::pair<uint64_t, size_t>>{{0, 0}, {10, 0}, {11, 4}, {12, 8}, {99, 8}}) {
    Batch batch;
    batch.rows = 2;
    batch.seq_len = 4;
    batch.first_sequence = 10;
    batch.labels.assign(8, 7);
    ignore_sequences_from(end, batch);
    CHECK(static_cast<size_t>(std::count(batch.labels.begin(), batch.labels.end(), 7)) == kept);
    CHECK(std::is_partitioned(batch.labels.begin(), batch.labels.end(),
                              [](int64_t label) { return label == 7; }));
  }
}

TEST_CASE("labels are the next tokens and rows share one token") {
  const I64 tokens = {10, 11, 12, 13, 14, 15, 16};
  const std::vector<DocumentSpan> pieces = {{0, at(1)}, {4, at(2)}};
  const Batch batch = pack(tokens, pieces, 2, 3, false);
  CHECK(batch.tokens == I64{10, 11, 12, 13, 14, 15});
  CHECK(batch.labels == I64{11, 12, 13, 14, 15, 16});
  CHECK(batch.positions.empty());
  CHECK(rows_of(batch) == "f:1, f:1..f:2");
}

TEST_CASE("document masking drops the transition between documents and restarts positions") {
  const I64 tokens = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  const std::vector<DocumentSpan> pieces = {{0, at(1)}, {2, at(2)}, {4, at(3)}, {5, at(4)}, {8, at(5)}};
  const Batch batch = pack(tokens, pieces, 2, 4, true);
  CHECK(batch.labels == I64{2, -100, 4, -100, -100, 7, 8, -100});
  CHECK(batch.positions == I32{0, 1, 0, 1, 0, 0, 1, 2});
  CHECK(rows_of(batch) == "f:1..f:2, f:3..f:4");
}

TEST_CASE("a document that goes on in the next row starts again at position 0 there") {
  const I64 tokens = {1, 2, 3, 4, 5, 6, 7};
  const std::vector<DocumentSpan> pieces = {{0, at(1)}};
  const Batch batch = pack(tokens, pieces, 2, 3, true);
  CHECK(batch.positions == I32{0, 1, 2, 0, 1, 2});
  CHECK(batch.labels == I64{2, 3, 4, 5, 6, 7});
}

TEST_CASE("what is missing at the end is padding without labels") {
  const std::vector<DocumentSpan> pieces = {{0, at(1)}};
  const Batch batch = pack(I64{1, 2, 3, 4}, pieces, 3, 2, false);
  CHECK(batch.tokens == I64{1, 2, 3, 4, 0, 0});
  CHECK(batch.labels == I64{2, 3, 4, -100, -100, -100});
  CHECK(rows_of(batch) == "f:1, f:1, padding");
  const Batch empty = pack({}, {}, 1, 2, true);
  CHECK(empty.tokens == I64{0, 0});
  CHECK(empty.labels == I64{-100, -100});
}

}  // namespace hyperion::data
