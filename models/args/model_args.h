// The dimensions that define a model, by its parts. A flavour is one value of ModelArgs
// (models/flavors/registry.h).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/choice.h"
#include "models/args/activation.h"
#include "models/args/dimension_checks.h"
#include "models/args/rope_args.h"
#include "models/parts/attention/args.h"
#include "models/parts/dense/args.h"
#include "models/parts/experts/args.h"
#include "models/parts/latent_attention/args.h"

namespace hyperion::models {

constexpr auto choices(Activation) {
  return choice_list<Activation>({
#define ACTIVATION(name, text, ...) {Activation::k##name, text},
#include "models/args/activations.def"
  });
}

// The parts that a block can have; attention_kind() and feed_forward_kind() choose.
enum class AttentionKind { kPlain, kLatent };
enum class FeedForwardKind { kDense, kExperts };

struct ModelArgs {
  std::string family = "llama3";
  int64_t dim = 256;
  int64_t n_layers = 6;
  int64_t vocab_size = 2048;
  int64_t max_seq_len = 2048;
  double norm_eps = 1e-5;
  Activation activation = Activation::kSilu;  // of every feed-forward's gate
  bool tied = false;                          // the head reads the embedding table
  bool depth_init = true;
  bool masks_documents = false;  // v0.2.2's flavour does, whatever training.document_mask is

  RopeArgs rope{};
  AttentionArgs attention{};
  LatentArgs latent{};
  DenseArgs dense{};
  ExpertArgs experts{};
};

AttentionKind attention_kind(const ModelArgs& args);
FeedForwardKind feed_forward_kind(const ModelArgs& args, int64_t layer);

// Decides by the length in training whether YaRN rescales the frequencies, so that sequences of other lengths
// get the same ones.
inline ModelArgs with_yarn_decided(ModelArgs args, int64_t trained_seq_len) {
  RopeArgs& rope = args.rope;
  if (rope.yarn) rope.yarn = rope.scaling = scales_by_yarn(rope, trained_seq_len);
  return args;
}

// The part of a model to which a dimension belongs.
enum class ModelPart {
  kModel,       // every model
  kTraining,    // every model: how it is trained, which config.json does not say
  kRescaled,    // rotary frequencies with Llama 3.1's scaling or with YaRN
  kScaling,     // rotary frequencies with Llama 3.1's scaling
  kYarn,        // rotary frequencies with YaRN
  kYarnChoice,  // every model: whether it has YaRN
  kPlainYarn,   // rotary frequencies with YaRN, of plain attention
  kWindow,      // a sliding window
  kLatent,      // latent attention
  kExperts,     // a mixture of experts
  kBalance,     // the balance of experts, which config.json does not say
};
bool has_part(const ModelArgs& args, ModelPart part);

// Says how a model without the part gets it: a noun for it, and the key of [model.args] that switches it on.
struct PartSwitch {
  std::string_view part, key;
};
PartSwitch switch_of(ModelPart part);

void check(const ModelArgs& args, DimensionChecks& checks);

}  // namespace hyperion::models
