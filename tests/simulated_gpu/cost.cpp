#include "tests/simulated_gpu/cost.h"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>

#include <ATen/ATen.h>
#include <ATen/core/function_schema.h>
#include <ATen/record_function.h>

#include "tests/simulated_gpu/trace.h"

namespace simulated_gpu {
namespace {

using at::Tensor;
using c10::IValue;

constexpr uint64_t kSector = 32;  // bytes that a GPU moves at least

// The names of short floats as they are called elsewhere; the others are libtorch's.
std::string name_of(at::ScalarType type) {
  switch (type) {
    case at::kBFloat16:
      return "bf16";
    case at::kHalf:
      return "fp16";
    case at::kFloat:
      return "fp32";
    case at::kFloat8_e4m3fn:
    case at::kFloat8_e5m2:
      return "fp8";
    default:
      return at::toString(type);
  }
}

void append_tensors(const IValue& value, std::vector<Tensor>& all) {
  if (value.isTensor()) {
    all.push_back(value.toTensor());
  } else if (value.isTensorList()) {
    for (const Tensor& t : value.toTensorVector()) all.push_back(t);
  } else if (value.isList() && value.toList().elementType()->kind() == c10::TypeKind::OptionalType) {
    for (const IValue& element : value.toListRef())
      if (element.isTensor()) all.push_back(element.toTensor());
  }
}

bool on_gpu(const Tensor& t) {
  return t.defined() && t.is_cuda() && t.numel() > 0;
}

// Bytes of device memory behind t.
uint64_t reached(const Tensor& t) {
  if (!on_gpu(t)) return 0;
  uint64_t elements = 1;
  uint64_t apart = 0;  // from an element to the nearest
  for (int64_t d = 0; d < t.dim(); ++d) {
    const auto stride = static_cast<uint64_t>(t.stride(d));
    if (t.size(d) == 1 || stride == 0) continue;
    elements *= static_cast<uint64_t>(t.size(d));
    apart = apart == 0 ? stride : std::min(apart, stride);
  }
  const auto bytes = static_cast<uint64_t>(t.element_size());
  return elements * bytes * std::clamp<uint64_t>(apart, 1, std::max<uint64_t>(1, kSector / bytes));
}

uint64_t reached(const std::vector<Tensor>& tensors) {
  std::set<std::pair<const void*, uint64_t>> seen;
  uint64_t sum = 0;
  for (const Tensor& t : tensors)
    if (on_gpu(t) && seen.emplace(t.const_data_ptr(), reached(t)).second) sum += reached(t);
  return sum;
}

std::string shape_of(const Tensor& t) {
  std::string text = name_of(t.scalar_type()) + "[";
  for (int64_t d = 0; d < t.dim(); ++d) text += (d == 0 ? "" : ",") + std::to_string(t.size(d));
  return text + "]";
}

// Operators whose first argument gets new contents, whatever it held.
bool overwrites(std::string_view name) {
  static const std::set<std::string_view> all = {
      "aten::copy_",          "aten::fill_",          "aten::zero_",           "aten::_foreach_copy_",
      "aten::_foreach_zero_", "aten::uniform_",       "aten::normal_",         "aten::random_",
      "aten::bernoulli_",     "hyperion::pack_keys_", "hyperion::unpack_keys_"};
  return all.contains(name);
}

// Operators that reach as much of an argument as they return or as their source has: its name, and whose.
struct Part {
  std::string_view argument, as_much_as;  // empty: as the results
};
const Part* part_of(std::string_view name) {
  static const std::map<std::string_view, Part> all = {
      {"aten::index_select", {"self", ""}},
      {"aten::index", {"self", ""}},
      {"aten::gather", {"self", ""}},
      {"aten::embedding", {"weight", ""}},
      {"aten::index_put_", {"self", "values"}},
      {"aten::_index_put_impl_", {"self", "values"}},
      {"aten::index_add_", {"self", "source"}},
      {"aten::scatter_", {"self", "index"}},
      {"aten::scatter_add_", {"self", "index"}},
      {"aten::nll_loss_forward", {"self", "target"}},
      {"aten::nll_loss_backward", {"self", "grad_output"}},
      {"fsdp::all_gather_copy_in", {"all_gather_output", "rank"}}};  // a part of it, written
  const auto found = all.find(name);
  return found == all.end() ? nullptr : &found->second;
}

class Call {
 public:
  Call(const c10::FunctionSchema& schema, const std::vector<IValue>& given)
      : schema_(schema), given_(given) {}

  const IValue* value(std::string_view name) const {
    for (size_t i = 0; i < given_.size(); ++i)
      if (schema_.arguments()[i].name() == name) return &given_[i];
    return nullptr;
  }
  Tensor tensor(std::string_view name) const {
    const IValue* const found = value(name);
    return found == nullptr || !found->isTensor() ? Tensor() : found->toTensor();
  }
  bool flag(std::string_view name) const {
    const IValue* const found = value(name);
    return found != nullptr && found->isBool() && found->toBool();
  }
  int64_t number(std::string_view name) const {
    const IValue* const found = value(name);
    return found == nullptr || !found->isInt() ? 0 : found->toInt();
  }

 private:
  const c10::FunctionSchema& schema_;
  const std::vector<IValue>& given_;
};

bool is_product(std::string_view name) {
  static const std::set<std::string_view> all = {"aten::mm",
                                                 "aten::addmm",
                                                 "aten::addmm_",
                                                 "aten::bmm",
                                                 "aten::baddbmm",
                                                 "aten::mv",
                                                 "aten::addmv",
                                                 "aten::dot",
                                                 "aten::_scaled_mm",
                                                 "aten::_addmm_activation",
                                                 "aten::addmv_",
                                                 "aten::_grouped_mm",
                                                 "aten::_scaled_grouped_mm"};
  return all.contains(name);
}

// Of rows that are divided among matrices, or of the products of such rows with each other: by all rows,
// those of the padding too, for what is a group's is on the device.
void count_product(const Call& call, const std::vector<Tensor>& results, Cost& cost) {
  Tensor left = call.tensor("mat1");
  for (const char* name : {"batch1", "mat", "self"})
    if (!left.defined()) left = call.tensor(name);
  if (!on_gpu(left) || results.empty() || !on_gpu(results[0])) return;
  const int64_t k = left.size(-1), m = left.dim() < 2 ? 1 : left.numel() / k;
  const int64_t n = results[0].dim() == 3 && left.dim() == 2 ? results[0].size(-1) : results[0].numel() / m;
  cost.flops = 2 * static_cast<uint64_t>(m) * static_cast<uint64_t>(n) * static_cast<uint64_t>(k);
  cost.of = name_of(left.scalar_type());
  if (call.value("use_fast_accum") != nullptr && !call.flag("use_fast_accum")) cost.of += "_slow";
  cost.of += " " + std::to_string(m) + "x" + std::to_string(k) + "x" + std::to_string(n);
}

// Two products forward and five backward. A causal mask leaves the last query all keys and each one before it
// one fewer: where there are as many queries, half of the pairs. Sequences that lie behind each other in one
// row count by the longest that is allowed: their lengths are on the device. A window counts all its keys.
void count_attention(const std::string& name, const Call& call, Cost& cost) {
  const Tensor q = call.tensor("query"), k = call.tensor("key"), v = call.tensor("value");
  if (!on_gpu(q) || !on_gpu(k) || !on_gpu(v) || q.dim() < 3) return;
  // [batch, heads, rows, head_dim] or [batch, rows, heads, head_dim], of packed sequences without the batch
  const bool heads_first = name.find("_scaled_dot_product_") != std::string::npos;
  const int64_t at = heads_first ? 2 : q.dim() - 3;
  const auto length = [&](const Tensor& t, const char* longest, const char* other_name) {
    const int64_t found = std::max(call.number(longest), call.number(other_name));
    return static_cast<double>(!heads_first && found > 0 ? found : t.size(at));
  };
  const double rows = length(q, "max_q", "max_seqlen_q"), keys = length(k, "max_k", "max_seqlen_k");
  const auto queries = static_cast<double>(q.numel() / q.size(-1));  // of all heads
  const int64_t qk = q.size(-1), pv = v.size(-1);
  const bool backward = name.find("backward") != std::string::npos;
  const auto a_pair = static_cast<double>(backward ? 6 * qk + 4 * pv : 2 * qk + 2 * pv);
  const bool causal = call.flag("is_causal") || call.number("custom_mask_type") > 0;
  double seen = causal ? keys - rows / 2 : keys;
  const IValue* const before = call.value("window_size_left");  // of flash: the keys before the last one
  if (before != nullptr && before->isInt() && before->toInt() >= 0)
    seen = std::min(seen, static_cast<double>(before->toInt() + 1));
  if (const int64_t window = call.number("window_size"); window > 0)
    seen = std::min(seen, static_cast<double>(window));
  cost.flops = static_cast<uint64_t>(queries * seen * a_pair);
  cost.of = shape_of(q);
}

thread_local std::vector<std::string> t_ranges;

std::unique_ptr<at::ObserverContext> begin_range(const at::RecordFunction& range) {
  t_ranges.emplace_back(range.name());
  trace("range", range.name());
  return nullptr;
}
void end_range(const at::RecordFunction&, at::ObserverContext*) {
  if (!t_ranges.empty()) t_ranges.pop_back();
}

}  // namespace

Cost cost_of(const c10::FunctionSchema& schema, const std::vector<IValue>& given,
             const std::vector<IValue>& results) {
  const std::string& name = schema.name();
  const Call call(schema, given);
  std::vector<Tensor> returned, read, written, all;
  for (const IValue& result : results) append_tensors(result, returned);
  const Part* const part = part_of(name);
  Cost cost;
  for (size_t i = 0; i < given.size(); ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    std::vector<Tensor> tensors;
    append_tensors(given[i], tensors);
    all.insert(all.end(), tensors.begin(), tensors.end());
    // Fused optimizers write gradients only where they also unscale them.
    const bool writes = argument.alias_info() != nullptr && argument.alias_info()->isWrite() &&
                        (argument.name() != "grads" || call.tensor("grad_scale").defined());
    if (part != nullptr && argument.name() == part->argument) {
      const uint64_t bytes =
          std::min(reached(tensors),
                   part->as_much_as.empty() ? reached(returned) : reached(call.tensor(part->as_much_as)));
      cost.read += bytes;
      if (writes) cost.written += bytes;
      continue;
    }
    if (!argument.is_out() && !(i == 0 && overwrites(name)))
      read.insert(read.end(), tensors.begin(), tensors.end());
    if (writes) written.insert(written.end(), tensors.begin(), tensors.end());
  }
  for (const Tensor& t : returned)
    if (on_gpu(t) && std::none_of(all.begin(), all.end(), [&](const Tensor& own) { return own.is_same(t); }))
      written.push_back(t);
  cost.read += reached(read);
  cost.written += reached(written);
  all.insert(all.end(), returned.begin(), returned.end());
  const Tensor* largest = nullptr;
  for (const Tensor& t : all)
    if (on_gpu(t) && (largest == nullptr || t.nbytes() > largest->nbytes())) largest = &t;
  if (largest != nullptr) cost.of = shape_of(*largest);
  if (is_product(name)) count_product(call, returned, cost);
  if (name.find("attention") != std::string::npos) count_attention(name, call, cost);
  return cost;
}

Launches& launches() {
  thread_local Launches of_thread;
  return of_thread;
}

void trace_ranges() {
  static const auto handle [[maybe_unused]] = at::addGlobalCallback(
      at::RecordFunctionCallback(begin_range, end_range).scopes({at::RecordScope::USER_SCOPE}));
}

void trace_cost(const std::string& name, const Cost& cost, const Launches& made) {
  if (!tracing()) return;
  std::string text = name + "\tkernels=" + std::to_string(made.kernels);
  const auto add = [&](const char* key, uint64_t number) {
    if (number > 0) text += std::string("\t") + key + "=" + std::to_string(number);
  };
  add("copies", made.copies);
  add("read", cost.read);
  add("written", cost.written);
  const bool from_cublas = cost.flops == 0 && made.flops > 0;
  add("flops", from_cublas ? made.flops : cost.flops);
  if (const std::string& of = from_cublas ? made.product : cost.of; !of.empty()) text += "\tof=" + of;
  if (!t_ranges.empty()) text += "\tin=" + t_ranges.back();
  trace("cost", text.c_str());
}

}  // namespace simulated_gpu
