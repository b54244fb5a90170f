// TokenEmbedding is the embedding of tokens. A tensor parallel group shards its vocabulary.
#pragma once

#include <utility>

#include <ATen/core/Tensor.h>

#include "base/exchange.h"
#include "base/parameter.h"

namespace hyperion::models {

class TokenEmbedding {
 public:
  // table: [vocab, dim]. tp_group: shards the rows of the table; null: the table is replicated.
  explicit TokenEmbedding(ParameterPtr table, Exchange* tp_group = nullptr)
      : table_(std::move(table)), tp_group_(tp_group) {}
  // Looks up tokens int64 [batch, seq], the same on all ranks -> [batch, seq, dim]. With a group of T ranks
  // it returns this rank's part of every sequence, [batch, seq / T, dim].
  at::Tensor forward(const at::Tensor& tokens) const;

 private:
  ParameterPtr table_;
  Exchange* tp_group_;
};

}  // namespace hyperion::models
