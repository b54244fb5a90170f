// Continues a text: greedily, or by drawing from the model's distribution.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "app/inference/engine.h"
#include "app/inference/sampling_options.h"
#include "data/tokenizer/tokenizer.h"

namespace hyperion::inference {

// The token drawn from logits (fp32, [vocab] in host memory) for the n-th new token: a function of its
// arguments alone, so a seed gives the same text again. Equal logits: the smaller id first. Throws
// Error(kNonFinite) when there is no finite logit to choose.
int64_t sample(std::span<const float> logits, const SamplingOptions& options, int64_t n);

// Continues `prompt`, which is not empty, until one of the tokens `eos`, until max_tokens are made or the
// model's positions are used up; returns the new tokens, without EOS. The whole prefix is computed again for
// each token (no key-value cache): simple and exactly what training computes, at a cost that grows with the
// square of the length. `each` is called with every new token.
std::vector<int64_t> generate(const InferenceEngine& engine, std::span<const int64_t> prompt,
                              std::span<const int64_t> eos, const SamplingOptions& options,
                              const std::function<void(int64_t)>& each = {});

// The same for text, which is printed as it is made and ends by the tokenizer's EOS, too. Throws
// Error(kUsage) for an empty prompt of a tokenizer without BOS and for one that is too long for the model.
void print_generated(const InferenceEngine& engine, const data::Tokenizer& tokenizer,
                     std::vector<int64_t> eos, const std::string& prompt, const SamplingOptions& options);

}  // namespace hyperion::inference
