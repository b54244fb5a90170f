#include "trainer/optim/matrix_exchange.h"

#include <algorithm>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

namespace hyperion::optim {
void MatrixExchange::Stage::start() {
  if (group != nullptr) pending = group->start_all_to_all(receive_buffer, send_buffer, received, sent);
}

void MatrixExchange::Stage::start_back() {
  if (group != nullptr) pending = group->start_all_to_all(send_buffer, receive_buffer, sent, received);
}

MatrixExchange::MatrixExchange(std::vector<Matrix> matrices,
                               const std::vector<parallel::ShardedParameterPtr>& parameters,
                               const MatrixGroups& groups, at::ScalarType dtype)
    : matrices_(std::move(matrices)) {
  ExchangeRank rank;
  if (groups.shard != nullptr) rank.shard = groups.shard->rank(), rank.shards = groups.shard->size();
  if (groups.tensor != nullptr) rank.tensor = groups.tensor->rank(), rank.tensors = groups.tensor->size();
  ExchangeLayout layout = exchange_layout(matrices_, rank, [&](size_t parameter, int holder) {
    return parameters[parameter]->elements_of_rank(holder);
  });
  static_cast<StageLayout&>(shards_) = std::move(layout.shards);
  static_cast<StageLayout&>(parts_) = std::move(layout.parts);
  shards_.group = groups.shard;
  parts_.group = groups.tensor;
  std::vector<std::vector<Segment>> by_matrix(matrices_.size());
  for (const Segment& piece : shards_.in) by_matrix[piece.matrix].push_back(piece);
  for (const Segment& part : parts_.out) pieces_.push_back(by_matrix[part.matrix]);
  by_matrix.assign(matrices_.size(), {});
  for (const Segment& part : parts_.in) by_matrix[part.matrix].push_back(part);
  for (size_t i = 0; i < matrices_.size(); ++i) {
    if (by_matrix[i].empty()) continue;
    Owned owned{.matrix = i, .by_columns = false};
    auto segment = by_matrix[i].begin();  // one for each part that is not empty, in the order of the ranks
    for (const MatrixPart& part : matrices_[i].parts) {
      if (part.numel() == 0) continue;
      owned.parts.emplace_back(*segment++, &part);
      owned.by_columns |= part.columns.count < matrices_[i].columns;
    }
    owned_.push_back(std::move(owned));
  }
  const at::TensorOptions options = parameters.front()->master().options().dtype(dtype).pinned_memory(false);
  for (Stage* stage : {&shards_, &parts_}) {
    stage->send_buffer = at::empty({stage->elements_sent()}, options);
    stage->receive_buffer =
        stage->group == nullptr ? stage->send_buffer : at::empty({stage->elements_received()}, options);
  }
}

int64_t MatrixExchange::buffer_bytes() const {
  int64_t bytes = 0;
  for (const Stage* stage : {&shards_, &parts_}) {
    bytes += static_cast<int64_t>(stage->send_buffer.nbytes());
    if (stage->group != nullptr) bytes += static_cast<int64_t>(stage->receive_buffer.nbytes());
  }
  return bytes;
}

void MatrixExchange::start(const std::vector<at::Tensor>& values) {
  for (const Segment& segment : shards_.out)
    shards_.send_buffer.narrow(0, segment.begin, segment.count)
        .copy_(values[matrices_[segment.matrix].parameter].narrow(0, segment.source.begin, segment.count));
  shards_.start();
}

std::vector<at::Tensor> MatrixExchange::gathered() {
  shards_.pending.wait();
  // The pieces of a part come by shard rank, which is their order in the part.
  for (size_t i = 0; i < pieces_.size(); ++i) {
    int64_t filled = parts_.out[i].begin;
    for (const Segment& piece : pieces_[i]) {
      parts_.send_buffer.narrow(0, filled, piece.count)
          .copy_(shards_.receive_buffer.narrow(0, piece.begin, piece.count));
      filled += piece.count;
    }
  }
  parts_.start();
  parts_.pending.wait();
  std::vector<at::Tensor> whole;
  for (const Owned& owned : owned_) {
    std::vector<at::Tensor> parts;
    for (const auto& [segment, part] : owned.parts)
      parts.push_back(parts_.receive_buffer.narrow(0, segment.begin, segment.count)
                          .view({part->rows.count, part->columns.count}));
    whole.push_back(parts.size() == 1 ? parts.front() : at::cat(parts, owned.by_columns ? 1 : 0));
  }
  return whole;
}

void MatrixExchange::start_back(const std::vector<at::Tensor>& results) {
  for (size_t i = 0; i < owned_.size(); ++i)
    for (const auto& [segment, part] : owned_[i].parts)
      parts_.receive_buffer.narrow(0, segment.begin, segment.count)
          .view({part->rows.count, part->columns.count})
          .copy_(results.at(i)
                     .narrow(0, part->rows.begin, part->rows.count)
                     .narrow(1, part->columns.begin, part->columns.count));
  parts_.start_back();
  parts_.pending.wait();
  for (size_t i = 0; i < pieces_.size(); ++i) {
    int64_t taken = parts_.out[i].begin;
    for (const Segment& piece : pieces_[i]) {
      shards_.receive_buffer.narrow(0, piece.begin, piece.count)
          .copy_(parts_.send_buffer.narrow(0, taken, piece.count));
      taken += piece.count;
    }
  }
  shards_.start_back();
}

std::vector<MatrixExchange::Piece> MatrixExchange::returned() {
  shards_.pending.wait();
  std::vector<Piece> pieces;
  for (const Segment& segment : shards_.out)
    pieces.push_back(
        {segment.matrix, segment.source, shards_.send_buffer.narrow(0, segment.begin, segment.count)});
  return pieces;
}

}  // namespace hyperion::optim
