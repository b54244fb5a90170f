#include "app/inference/generate.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "base/philox.h"
#include "base/standard_streams.h"

namespace hyperion::inference {
namespace {

// Bytes at the end of `text` that may be the start of a character whose other bytes come with the next token:
// decode() writes U+FFFD for them.
size_t incomplete_bytes(const std::string& text) {
  constexpr std::string_view kReplacement = "\xef\xbf\xbd";
  size_t open = 0;
  while (std::string_view(text).substr(0, text.size() - open).ends_with(kReplacement))
    open += kReplacement.size();
  return open;
}

// Prints what each token adds to the text; characters made of several tokens when they are complete.
class Printer {
 public:
  explicit Printer(const data::Tokenizer& tokenizer) : tokenizer_(tokenizer) {}
  void add(int64_t token) {
    ids_.push_back(static_cast<int32_t>(token));
    const std::string text = tokenizer_.decode(ids_);
    write(text, text.size() - incomplete_bytes(text));
  }
  void finish() {
    const std::string text = tokenizer_.decode(ids_);
    write(text, text.size());
    print_text("\n");
  }

 private:
  void write(const std::string& text, size_t end) {
    if (end <= printed_) return;
    print_outside_text(std::string_view(text).substr(printed_, end - printed_));
    printed_ = end;
  }
  const data::Tokenizer& tokenizer_;
  std::vector<int32_t> ids_;
  size_t printed_ = 0;
};

}  // namespace

int64_t sample(std::span<const float> logits, const SamplingOptions& options, int64_t n) {
  std::vector<int64_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::erase_if(order, [&](int64_t id) { return !std::isfinite(logits[static_cast<size_t>(id)]); });
  if (order.empty()) throw Error(ExitCode::kNonFinite, "generate: the model's logits are not finite");
  const auto likelier = [&](int64_t a, int64_t b) {
    const float left = logits[static_cast<size_t>(a)], right = logits[static_cast<size_t>(b)];
    return left != right ? left > right : a < b;
  };
  if (options.temperature == 0) return *std::min_element(order.begin(), order.end(), likelier);
  if (options.top_k > 0 && options.top_k < static_cast<int64_t>(order.size())) {
    std::nth_element(order.begin(), order.begin() + options.top_k, order.end(), likelier);
    order.resize(static_cast<size_t>(options.top_k));
    std::sort(order.begin(), order.end());
  }
  float highest = logits[static_cast<size_t>(order.front())];
  for (const int64_t id : order) highest = std::max(highest, logits[static_cast<size_t>(id)]);
  std::vector<double> sums;
  double sum = 0;
  for (const int64_t id : order) {
    sum += std::exp((static_cast<double>(logits[static_cast<size_t>(id)]) - highest) / options.temperature);
    sums.push_back(sum);
  }
  const PhiloxBlock random = philox4x32(options.seed, static_cast<uint64_t>(n));
  const double point = uniform_open(random[0], random[1]) * sum;
  const auto chosen = std::upper_bound(sums.begin(), sums.end(), point) - sums.begin();
  return order[std::min(static_cast<size_t>(chosen), order.size() - 1)];
}

std::vector<int64_t> generate(const InferenceEngine& engine, std::span<const int64_t> prompt,
                              std::span<const int64_t> eos, const SamplingOptions& options,
                              const std::function<void(int64_t)>& each) {
  if (prompt.empty()) throw_bug("generate() needs a token to begin with");
  std::vector<int64_t> tokens(prompt.begin(), prompt.end());
  std::vector<int64_t> made;
  const int64_t limit = engine.args().max_seq_len - static_cast<int64_t>(tokens.size());
  for (int64_t n = 0; n < std::min(options.max_tokens, limit); ++n) {
    const at::Tensor logits = engine.next_logits(tokens);
    const int64_t token =
        sample({logits.const_data_ptr<float>(), static_cast<size_t>(logits.numel())}, options, n);
    if (std::ranges::count(eos, token) > 0) break;
    tokens.push_back(token);
    made.push_back(token);
    if (each) each(token);
  }
  return made;
}

void print_generated(const InferenceEngine& engine, const data::Tokenizer& tokenizer,
                     std::vector<int64_t> eos, const std::string& prompt, const SamplingOptions& options) {
  const std::vector<int32_t> ids = tokenizer.encode(prompt, {.bos = true});
  if (ids.empty()) throw_config("--prompt is empty, and the tokenizer names no BOS to begin with");
  const auto length = static_cast<int64_t>(ids.size());
  if (length >= engine.args().max_seq_len)
    throw_config("--prompt has {} tokens, expected fewer than the model's {} positions", length,
                 engine.args().max_seq_len);
  if (const auto largest = *std::max_element(ids.begin(), ids.end()); largest >= engine.args().vocab_size)
    throw_config(
        "the tokenizer's id {} is beyond the model's vocabulary of {}: name the model's own tokenizer",
        largest, engine.args().vocab_size);
  if (const auto own = tokenizer.eos_id()) eos.push_back(*own);
  Printer printer(tokenizer);
  generate(engine, std::vector<int64_t>(ids.begin(), ids.end()), eos, options,
           [&](int64_t token) { printer.add(token); });
  printer.finish();
}

}  // namespace hyperion::inference
