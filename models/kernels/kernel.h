// Kernel<F> has the forms of one kernel and calls the form that was chosen.
#pragma once

#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>

namespace hyperion::kernels {

// The tensors and numbers of a call, for profiles and traces. append() of a kernel's structs is in the
// kernel's header.
using Values = std::vector<c10::IValue>;
inline void append(Values& values, const at::Tensor& t) {
  values.emplace_back(t);
}
inline void append(Values& values, const at::Tensor* t) {
  values.push_back(t == nullptr ? c10::IValue() : c10::IValue(*t));
}
inline void append(Values& values, at::TensorList list) {
  values.emplace_back(list.vec());
}
inline void append(Values& values, double x) {
  values.emplace_back(x);
}
inline void append(Values& values, int64_t x) {
  values.emplace_back(x);
}
template <typename E>
requires std::is_enum_v<E>
void append(Values& values, E x) {
  values.emplace_back(static_cast<int64_t>(x));
}
inline void append(Values& values, const std::pair<at::Tensor, at::Tensor>& two) {
  append(values, two.first);
  append(values, two.second);
}
template <typename... T>
Values values_of(const T&... arguments) {
  Values values;
  (append(values, arguments), ...);
  return values;
}

inline const at::Tensor& first_tensor(const at::Tensor& t) {
  return t;
}

// Logs why the plain form of a kernel runs; each text once per process.
void log_plain(const char* title, const std::string& reason);

// One row of the table (kernels.h). Profiles show a form that is not plain as a range with the kernel's name.
template <typename Function>
struct Kernel;
template <typename Result, typename... Arguments>
struct Kernel<Result(Arguments...)> {
  using Form = Result (*)(Arguments...);
  const char* name;   // "hyperion::rope_heads"; an in-place kernel's ends with _
  const char* title;  // the name in log lines
  // Returns why only the plain form takes these arguments; "" if all forms do.
  std::string (*why_plain)(const Arguments&...);
  Form plain;                      // the specification, for every device and dtype
  Form cpu = plain, cuda = plain;  // fp32 and bf16 only

  Result operator()(Arguments... arguments) const {
    const Form form = chosen(arguments...);
    if (form == plain) return plain(arguments...);
    at::RecordFunction range(at::RecordScope::FUNCTION);
    Values inputs;
    if (range.isActive()) {
      if (range.needsInputs()) inputs = values_of(arguments...);
      range.before(name, &inputs);
    }
    if constexpr (std::is_void_v<Result>) {
      form(arguments...);
    } else {
      Result result = form(arguments...);
      if (range.needsOutputs()) range.setOutputs(values_of(result));
      return result;
    }
  }

  bool is_plain(at::Device device) const { return (device.is_cuda() ? cuda : cpu) == plain; }

  // Returns the form for these arguments.
  Form chosen(const Arguments&... arguments) const {
    const at::Tensor& first = first_tensor(std::get<0>(std::tie(arguments...)));
    const Form form = first.is_cuda() ? cuda : cpu;
    if (form == plain) return plain;
    const std::string reason = why_plain(arguments...);
    if (reason.empty()) return form;
    if (first.is_cuda()) log_plain(title, reason);
    return plain;
  }
};

}  // namespace hyperion::kernels
