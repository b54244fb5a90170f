#include "trainer/engine/batch_mover.h"

#include <catch2/catch.hpp>

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>

#include "models/flavors/registry.h"

namespace hyperion::trainer {
namespace {

// Two rows of eight tokens; the second one has two documents, of three and five tokens, and one label less.
data::Batch batch(bool documents) {
  data::Batch made{.rows = 2, .seq_len = 8, .tokens = {}, .labels = {}, .positions = {}, .documents = {}};
  for (int64_t i = 0; i < 16; ++i) {
    made.tokens.push_back(i);
    made.labels.push_back(i == 10 ? data::kIgnoreLabel : i + 1);
    if (documents) made.positions.push_back(static_cast<int32_t>(i < 11 ? i % 8 : i - 11));
  }
  return made;
}

const models::Transformer& model() {
  static const models::Transformer made(models::model_args(
      "llama3", "debugmodel", {.dim = 8, .n_layers = 1, .n_heads = 2, .vocab_size = 17, .hidden_dim = 8}));
  return made;
}

}  // namespace

TEST_CASE("a context parallel rank is given its parts of the sequences with their angles and documents") {
  const bool documents = GENERATE(false, true), head_tail = GENERATE(true, false);
  const int ranks = GENERATE(2, 4);
  CAPTURE(documents, head_tail, ranks);
  const data::Batch all = batch(documents);
  const models::Microbatch complete = BatchMover(model(), at::kCPU).move(all, 0, 2);
  CHECK(complete.context.parts.empty());
  int64_t valid = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    BatchMover mover(model(), at::kCPU, true, {ranks, rank, head_tail});
    const models::Microbatch own = mover.move(all, 0, 2);
    const std::vector<models::SequenceRange> parts = mover.parts(8);
    REQUIRE(parts.size() == (head_tail ? 2U : 1U));
    const auto columns = [&](const at::Tensor& t, int64_t dim) {
      return models::columns_of_parts(t, parts, dim);
    };
    CHECK(own.tokens.equal(columns(complete.tokens, 1)));
    CHECK(own.labels.equal(columns(complete.labels, 1)));
    CHECK(own.context.cos.equal(columns(complete.context.cos, documents ? 1 : 0)));
    CHECK(own.context.sin.equal(columns(complete.context.sin, documents ? 1 : 0)));
    REQUIRE(own.context.parts.size() == parts.size());
    for (size_t i = 0; i < parts.size(); ++i) {
      CHECK(own.context.parts[i].range == parts[i]);
      const kernels::AttentionMask& of_part = own.context.parts[i].mask;
      CHECK(of_part.has_documents() == documents);
      if (documents)  // counted from the first key of the sequence
        CHECK(of_part.first_keys.equal(
            complete.context.mask.first_keys.narrow(1, parts[i].first, parts[i].size())));
    }
    valid += valid_tokens(all, parts);
    const models::Microbatch second = mover.move(all, 1, 1);  // a microbatch of one row
    CHECK(second.tokens.equal(own.tokens.narrow(0, 1, 1)));
    CHECK_FALSE(
        BatchMover(model(), at::kCPU, false, {ranks, rank, head_tail}).move(all, 0, 2).labels.defined());
  }
  CHECK(valid == valid_tokens(all));
  CHECK(valid_tokens(all, {{2, 4}}) == 3);
}

TEST_CASE("YaRN scales attention by the length of the complete sequence on each context parallel rank") {
  const models::Transformer latent(models::model_args("deepseek_v3", "debugmodel",
                                                      {.dim = 16,
                                                       .n_layers = 1,
                                                       .n_heads = 2,
                                                       .vocab_size = 17,
                                                       .hidden_dim = 8,
                                                       .rope_original_length = 5,
                                                       .kv_lora_rank = 6,
                                                       .qk_nope_head_dim = 4,
                                                       .qk_rope_head_dim = 4,
                                                       .v_head_dim = 3}));
  const bool documents = GENERATE(false, true);
  const data::Batch all = batch(documents);
  const double complete = BatchMover(latent, at::kCPU).move(all, 0, 2).context.attention_factor;
  REQUIRE(complete > 1);
  CHECK(BatchMover(latent, at::kCPU, true, {2, 0, true}).move(all, 0, 2).context.attention_factor ==
        complete);
}

}  // namespace hyperion::trainer
