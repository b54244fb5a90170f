// The embedding of tokens, whole on one rank or its vocabulary divided over a tensor parallel group.
#pragma once

#include <utility>

#include <ATen/core/Tensor.h>

#include "base/exchange.h"
#include "base/parameter.h"

namespace hyperion::models {

class TokenEmbedding {
 public:
  // table [vocab, dim]; ranks: those that divide its rows, or null.
  explicit TokenEmbedding(ParameterPtr table, Exchange* ranks = nullptr)
      : table_(std::move(table)), ranks_(ranks) {}
  // tokens int64 [batch, seq], the same on all ranks -> [batch, seq, dim], of T ranks this one's part of
  // every sequence, [batch, seq / T, dim]
  at::Tensor forward(const at::Tensor& tokens) const;

 private:
  ParameterPtr table_;
  Exchange* ranks_;
};

}  // namespace hyperion::models
