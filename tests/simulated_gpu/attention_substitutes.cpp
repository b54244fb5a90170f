#include "tests/simulated_gpu/attention_substitutes.h"

#include <cstdio>
#include <cstdlib>

#include <unistd.h>

#include <ATen/ATen.h>

namespace simulated_gpu {
namespace {

using at::Tensor;

Tensor tensor_of(const c10::IValue& value) {
  return value.isNone() ? Tensor() : value.toTensor();
}
std::optional<double> scale_of(const c10::IValue& value) {
  return value.isNone() ? std::nullopt : std::optional(value.toDouble());
}
std::optional<Tensor> optional(const Tensor& t) {
  return t.defined() ? std::optional(t) : std::nullopt;
}
Tensor repeated(const Tensor& t, int64_t heads) {
  return t.size(1) == heads ? t : t.repeat_interleave(heads / t.size(1), 1);
}
Tensor summed(const Tensor& t, int64_t heads) {
  return t.size(1) == heads ? t : t.unflatten(1, {heads, t.size(1) / heads}).sum(2);
}
enum class Mask { kNone, kFromFirstKey, kFromLastKey };  // of causal attention: where its diagonal begins
Mask from_first_key(const c10::IValue& causal) {
  return causal.toBool() ? Mask::kFromFirstKey : Mask::kNone;
}
Mask from_last_key(const c10::IValue& causal) {
  return causal.toBool() ? Mask::kFromLastKey : Mask::kNone;
}

struct AttentionCall {
  Tensor q, k, v, bias;
  Mask mask;
  std::optional<double> scale;
  int64_t window = 0;  // how many keys a query sees, up to its last; 0: all

  // The CPU's is causal from the first key.
  bool causal() const { return mask != Mask::kNone && !shifted() && window == 0; }
  Tensor mask_or_bias() const {
    if (!shifted() && window == 0) return bias;
    const int64_t last = k.size(2) - q.size(2);  // the last key of the first query
    Tensor allowed = at::ones({q.size(2), k.size(2)}, at::kBool).tril(last);
    if (window > 0) allowed = allowed.triu(last - window + 1);
    return at::zeros(allowed.sizes(), q.options())
        .masked_fill_(allowed.logical_not(), -std::numeric_limits<double>::infinity());
  }

 private:
  bool shifted() const { return mask == Mask::kFromLastKey && q.size(2) != k.size(2); }
};

// The CPU's takes heads of one width: values narrower than keys have zeros behind them.
Tensor padded(const Tensor& t, int64_t width) {
  return t.size(3) == width ? t : at::constant_pad_nd(t, {0, width - t.size(3)});
}

std::pair<Tensor, Tensor> forward(const AttentionCall& call) {
  const int64_t heads = call.q.size(1), width = call.q.size(3);
  auto [out, lse] = at::_scaled_dot_product_flash_attention_for_cpu(
      call.q, repeated(call.k, heads), padded(repeated(call.v, heads), width), 0.0, call.causal(),
      optional(call.mask_or_bias()), call.scale);
  return {out.narrow(3, 0, call.v.size(3)), lse};
}

Values backward(const AttentionCall& call, const Tensor& grad, const Tensor& out, const Tensor& lse) {
  const int64_t heads = call.q.size(1), width = call.q.size(3);
  auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      padded(grad, width), call.q, repeated(call.k, heads), padded(repeated(call.v, heads), width),
      padded(out, width), lse, 0.0, call.causal(), optional(call.mask_or_bias()), call.scale);
  return {dq, summed(dk, call.k.size(1)), summed(dv.narrow(3, 0, call.v.size(3)), call.v.size(1))};
}

// Flash's window, which counts the keys before a query's last one.
int64_t flash_window(const c10::IValue& keys_before) {
  return keys_before.isNone() || keys_before.toInt() < 0 ? 0 : keys_before.toInt() + 1;
}
int64_t window_of(const c10::IValue& window) {
  return window.isNone() ? 0 : window.toInt();
}

// The efficient kernels' sums of exponentials have rows of a multiple of 32.
Tensor padded_lse(const Tensor& lse) {
  const int64_t missing = (32 - lse.size(2) % 32) % 32;
  return at::constant_pad_nd(lse, {0, missing}, std::numeric_limits<double>::infinity());
}

// Sequences of different lengths, one behind the other: rows [tokens, heads, head_dim], of which sequence i
// has those from bounds[i] to bounds[i + 1].
struct Sequences {
  explicit Sequences(const Tensor& bounds) : bounds(bounds) {}

  int64_t count() const { return bounds.size(0) - 1; }
  int64_t begin(int64_t i) const { return bounds.const_data_ptr<int32_t>()[i]; }
  int64_t length(int64_t i) const { return begin(i + 1) - begin(i); }
  Tensor rows(const Tensor& all, int64_t i) const { return all.narrow(0, begin(i), length(i)); }
  // [1, heads, length, head_dim]
  Tensor heads(const Tensor& all, int64_t i) const { return rows(all, i).transpose(0, 1).unsqueeze(0); }

  Tensor bounds;
};

struct SequencesCall {
  Tensor q, k, v;
  Sequences queries, keys;  // which may have no queries
  Mask mask;
  std::optional<double> scale;
  int64_t window = 0;
  AttentionCall of(int64_t i) const {
    return {queries.heads(q, i), keys.heads(k, i), keys.heads(v, i), {}, mask, scale, window};
  }
};

// lse_of(i): where the log-sum-exp of a sequence goes, [1, heads, length].
template <typename LseOf>
Tensor forward_of_sequences(const SequencesCall& call, const LseOf& lse_of) {
  Tensor out = at::empty_like(call.q, at::MemoryFormat::Contiguous);
  for (int64_t i = 0; i < call.queries.count(); ++i) {
    if (call.queries.length(i) == 0) continue;
    const auto [one, lse] = forward(call.of(i));
    call.queries.heads(out, i).copy_(one);
    lse_of(i).copy_(lse);
  }
  return out;
}

template <typename LseOf>
std::vector<Tensor> backward_of_sequences(const SequencesCall& call, const Tensor& grad, const Tensor& out,
                                          const LseOf& lse_of) {
  std::vector<Tensor> all;
  for (const Tensor& t : {call.q, call.k, call.v})
    all.push_back(at::zeros_like(t, at::MemoryFormat::Contiguous));
  for (int64_t i = 0; i < call.queries.count(); ++i) {
    if (call.queries.length(i) == 0) continue;
    const Values one =
        backward(call.of(i), call.queries.heads(grad, i), call.queries.heads(out, i), lse_of(i).contiguous());
    call.queries.heads(all[0], i).copy_(one[0].toTensor());
    for (size_t t = 1; t < all.size(); ++t) call.keys.heads(all[t], i).copy_(one[t].toTensor());
  }
  return all;
}

Tensor heads_first(const c10::IValue& value) {
  return value.toTensor().transpose(1, 2);
}

// HYPERION_SIMULATED_CUDNN: "refuse", as a version that has no plan for the shape, "refuse_backward", one
// that has none for the backward of several sequences on another thread than the main one, or "wrong".
std::string cudnn_fault() {
  const char* value = std::getenv("HYPERION_SIMULATED_CUDNN");
  const std::string fault = value == nullptr ? "" : value;
  if (fault.empty() || fault == "refuse" || fault == "refuse_backward" || fault == "wrong") return fault;
  std::fprintf(stderr, "HYPERION_SIMULATED_CUDNN is '%s', expected refuse, refuse_backward or wrong\n",
               value);
  std::_Exit(99);
}

}  // namespace

Values flash(const Values& a) {
  auto [out, lse] =
      forward({a[0].toTensor(), a[1].toTensor(), a[2].toTensor(), {}, from_last_key(a[4]), scale_of(a[6])});
  return {out, lse};
}

Values flash_backward(const Values& a) {
  return backward(
      {a[1].toTensor(), a[2].toTensor(), a[3].toTensor(), {}, from_last_key(a[11]), scale_of(a[14])},
      a[0].toTensor(), a[4].toTensor(), a[5].toTensor());
}

Values efficient(const Values& a) {
  auto [out, lse] = forward({a[0].toTensor(), a[1].toTensor(), a[2].toTensor(), tensor_of(a[3]),
                             from_first_key(a[6]), scale_of(a[7])});
  return {out, padded_lse(lse)};
}

Values efficient_backward(const Values& a) {
  const Tensor q = a[1].toTensor();
  return backward(
      {q, a[2].toTensor(), a[3].toTensor(), tensor_of(a[4]), from_first_key(a[11]), scale_of(a[12])},
      a[0].toTensor(), a[5].toTensor(), a[6].toTensor().narrow(2, 0, q.size(2)).contiguous());
}

Values flash_sequences(const Values& a) {
  if (!tensor_of(a[3]).defined()) {
    const auto [out, lse] = forward({heads_first(a[0]),
                                     heads_first(a[1]),
                                     heads_first(a[2]),
                                     {},
                                     from_last_key(a[8]),
                                     scale_of(a[10]),
                                     flash_window(a[11])});
    return {out.transpose(1, 2), lse};
  }
  const Sequences queries(a[3].toTensor()), keys(a[4].toTensor());
  const Tensor q = a[0].toTensor();
  const Tensor lse = at::empty({q.size(1), q.size(0)}, q.options().dtype(at::kFloat));
  const Tensor out = forward_of_sequences(
      {q, a[1].toTensor(), a[2].toTensor(), queries, keys, from_last_key(a[8]), scale_of(a[10]),
       flash_window(a[11])},
      [&](int64_t i) { return lse.narrow(1, queries.begin(i), queries.length(i)).unsqueeze(0); });
  return {out, lse};
}

Values flash_sequences_backward(const Values& a) {
  if (!tensor_of(a[6]).defined()) {
    const Values grads = backward({heads_first(a[1]),
                                   heads_first(a[2]),
                                   heads_first(a[3]),
                                   {},
                                   from_last_key(a[11]),
                                   scale_of(a[14]),
                                   flash_window(a[15])},
                                  heads_first(a[0]), heads_first(a[4]), a[5].toTensor());
    return {heads_first(grads[0]), heads_first(grads[1]), heads_first(grads[2])};
  }
  const Sequences queries(a[6].toTensor()), keys(a[7].toTensor());
  const Tensor lse = a[5].toTensor();
  const auto grads = backward_of_sequences(
      {a[1].toTensor(), a[2].toTensor(), a[3].toTensor(), queries, keys, from_last_key(a[11]),
       scale_of(a[14]), flash_window(a[15])},
      a[0].toTensor(), a[4].toTensor(),
      [&](int64_t i) { return lse.narrow(1, queries.begin(i), queries.length(i)).unsqueeze(0); });
  return {grads[0], grads[1], grads[2]};
}

Values efficient_sequences(const Values& a) {
  const auto mask = static_cast<Mask>(a[9].toInt());
  if (a[4].isNone()) {
    const auto [out, lse] = forward({heads_first(a[0]),
                                     heads_first(a[1]),
                                     heads_first(a[2]),
                                     {},
                                     mask,
                                     scale_of(a[11]),
                                     window_of(a[13])});
    return {out.transpose(1, 2), padded_lse(lse)};
  }
  const Sequences queries(a[4].toTensor()), keys(a[5].toTensor());
  const Tensor q = a[0].toTensor().squeeze(0);
  const int64_t width = (a[6].toInt() + 31) / 32 * 32;
  const Tensor lse = at::full({queries.count(), q.size(1), width}, std::numeric_limits<double>::infinity(),
                              q.options().dtype(at::kFloat));
  const Tensor out =
      forward_of_sequences({q, a[1].toTensor().squeeze(0), a[2].toTensor().squeeze(0), queries, keys, mask,
                            scale_of(a[11]), window_of(a[13])},
                           [&](int64_t i) { return lse.narrow(0, i, 1).narrow(2, 0, queries.length(i)); });
  return {out.unsqueeze(0), lse};
}

Values efficient_sequences_backward(const Values& a) {
  const auto mask = static_cast<Mask>(a[14].toInt());
  const Tensor lse = a[10].toTensor();
  if (a[6].isNone()) {
    const Tensor q = heads_first(a[1]);
    const Values grads =
        backward({q, heads_first(a[2]), heads_first(a[3]), {}, mask, scale_of(a[16]), window_of(a[18])},
                 heads_first(a[0]), heads_first(a[5]), lse.narrow(2, 0, q.size(2)).contiguous());
    return {heads_first(grads[0]), heads_first(grads[1]), heads_first(grads[2])};
  }
  const Sequences queries(a[6].toTensor()), keys(a[7].toTensor());
  const auto row = [](const c10::IValue& value) { return value.toTensor().squeeze(0); };
  const auto grads = backward_of_sequences(
      {row(a[1]), row(a[2]), row(a[3]), queries, keys, mask, scale_of(a[16]), window_of(a[18])}, row(a[0]),
      row(a[5]), [&](int64_t i) { return lse.narrow(0, i, 1).narrow(2, 0, queries.length(i)); });
  return {grads[0].unsqueeze(0), grads[1].unsqueeze(0), grads[2].unsqueeze(0)};
}

Values cudnn(const Values& a) {
  auto [out, lse] = forward({a[0].toTensor(), a[1].toTensor(), a[2].toTensor(), tensor_of(a[3]),
                             from_first_key(a[6]), scale_of(a[8])});
  return {cudnn_fault() == "wrong" ? out * 1.1 : out, lse.unsqueeze(-1)};
}

Values cudnn_results(const Values& a) {
  TORCH_CHECK(cudnn_fault() != "refuse", "No valid execution plans built.");
  const Tensor q = a[0].toTensor();
  std::vector<int64_t> tokens_first = q.transpose(1, 2).sizes().vec();
  tokens_first.back() = a[2].toTensor().size(3);
  return {at::empty(tokens_first, q.options()).transpose(1, 2),
          at::empty({q.size(0), q.size(1), q.size(2), 1}, q.options().dtype(at::kFloat)),
          Tensor(),
          Tensor(),
          q.size(2),
          a[1].toTensor().size(2),
          at::empty({}, q.options().dtype(at::kLong)),
          at::empty({}, q.options().dtype(at::kLong)),
          Tensor()};
}

Values cudnn_backward(const Values& a) {
  return backward({a[1].toTensor(), a[2].toTensor(), a[3].toTensor(), tensor_of(a[8]), from_first_key(a[14]),
                   scale_of(a[15])},
                  a[0].toTensor(), a[4].toTensor(), a[5].toTensor().squeeze(-1));
}

Values cudnn_backward_results(const Values& a) {
  const bool several_on_another_thread = a[1].toTensor().size(0) > 1 && ::gettid() != ::getpid();
  TORCH_CHECK(cudnn_fault() != "refuse_backward" || !several_on_another_thread,
              "No valid execution plans built.");
  return {at::empty_like(a[1].toTensor()), at::empty_like(a[2].toTensor()), at::empty_like(a[3].toTensor())};
}

Values cudnn_sequences(const Values& a) {
  const Sequences sequences(a[4].toTensor());
  const Tensor q = a[0].toTensor();
  const Tensor lse = at::empty({q.size(1), q.size(0)}, q.options().dtype(at::kFloat));
  const Tensor out = forward_of_sequences(
      {q, a[1].toTensor(), a[2].toTensor(), sequences, sequences, from_first_key(a[10]), scale_of(a[12])},
      [&](int64_t i) { return lse.narrow(1, sequences.begin(i), sequences.length(i)).unsqueeze(0); });
  return {out, lse.t().unsqueeze(-1)};
}

Values cudnn_sequences_results(const Values& a) {
  TORCH_CHECK(cudnn_fault() != "refuse", "No valid execution plans built.");
  const Tensor q = a[0].toTensor();
  std::vector<int64_t> tokens_first = q.transpose(1, 2).sizes().vec();
  tokens_first.back() = a[2].toTensor().size(3);
  return {at::empty(tokens_first, q.options()).transpose(1, 2),
          at::empty({q.size(0), q.size(1), 1}, q.options().dtype(at::kFloat)),
          a[4],
          a[5],
          a[6],
          a[7],
          at::empty({}, q.options().dtype(at::kLong)),
          at::empty({}, q.options().dtype(at::kLong)),
          Tensor()};
}

}  // namespace simulated_gpu
