// Packs the token stream into sequences. No I/O.
//
// Sequence i is tokens [i*S, i*S + S] of the stream: S inputs and, shifted by one, S labels, so that
// neighbours share one token and every transition is trained on once. (torchtitan v0.2.2 cuts off S + 1
// tokens and loses one transition per sequence.) Labels cross document boundaries as in v0.2.2, unless
// document masking is on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "data/document_place.h"

namespace hyperion::data {

// A label that is ignored by the loss and does not count as a valid token.
inline constexpr int64_t kIgnoreLabel = -100;

// The part of a document in a window of tokens.
struct DocumentSpan {
  size_t begin;  // index of its first token in the window
  DocumentPlace place;
  uint64_t offset = 0;  // of that token in the document
};

// The rows of one microbatch on one data-parallel rank. Matrices are [rows, seq_len], row by row.
struct Batch {
  int64_t rows = 0;
  int64_t seq_len = 0;
  uint64_t first_sequence = 0;  // index in the stream of row 0's sequence; row r holds first_sequence + r
  std::vector<int64_t> tokens;
  std::vector<int64_t> labels;
  // Positions inside the document's part of this row (0 at the row's start, even if a document continues
  // from the previous row). Empty without document masking.
  std::vector<int32_t> positions;
  std::vector<std::vector<DocumentSpan>> documents;  // [rows]: those of each row, in whole or in part
  // [rows]: index of the source that each row is from (LoaderOptions::sources). Empty if the only one has no
  // name.
  std::vector<int32_t> source_of_row{};
};

// The documents of a row; none ("padding") for a row of padding.
PlaceRange places_of_row(const Batch& batch, size_t row);

// Appends a row to a batch whose seq_len is set, from `tokens`: seq_len + 1 tokens of the stream, or fewer at
// its end, padded by token 0 with label -100. `spans` begin in ascending order, the first at 0. With
// `document_mask`, the label at a document's last token, which is the next document's first token, is -100,
// and positions are filled.
void append_row(std::span<const int64_t> tokens, std::span<const DocumentSpan> spans, bool document_mask,
                Batch& batch);

// Sets the labels of rows whose sequence is `end` or later to -100.
void ignore_sequences_from(uint64_t end, Batch& batch);

}  // namespace hyperion::data
