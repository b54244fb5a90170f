#include "tests/simulated_gpu/operators.h"

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/distributed/c10d/ParamCommsUtils.hpp>

#include "tests/simulated_gpu/cost.h"
#include "tests/simulated_gpu/memory.h"
#include "tests/simulated_gpu/stream.h"
#include "tests/simulated_gpu/substitutes.h"
#include "tests/simulated_gpu/trace.h"

namespace simulated_gpu {
namespace {

using at::Tensor;
using c10::DispatchKey;
using c10::IValue;
using c10::Stack;

[[noreturn]] void stop(const std::string& why) {
  std::fprintf(stderr, "simulated GPU: %s\n", why.c_str());
  std::_Exit(99);
}

Stream& current_stream() {
  static const c10::impl::VirtualGuardImpl cuda(c10::DeviceType::CUDA);
  return stream_of(cuda.getStreamNativeHandle(cuda.getStream(cuda.getDevice())));
}

// The memory of t, which is not kept alive: a GPU's work keeps none either.
Tensor on_cpu(const Tensor& t) {
  if (!t.defined()) return t;
  return at::from_blob(t.numel() == 0 ? nullptr : t.data_ptr(), t.sizes(), t.strides(),
                       t.options().device(at::kCPU).requires_grad(false));
}

// A value as the CPU's operator takes it. Host tensors are read when the operator is called, as by a launch.
IValue on_cpu(const IValue& value, bool keep_host_tensors) {
  const auto one = [&](const Tensor& t) {
    return t.defined() && t.is_cpu() && !keep_host_tensors ? t.clone() : on_cpu(t);
  };
  if (value.isTensor()) return one(value.toTensor());
  if (value.isTensorList()) {
    c10::List<Tensor> list;
    for (const Tensor& t : value.toTensorVector()) list.push_back(one(t));
    return list;
  }
  if (value.isList() && value.toList().elementType()->kind() == c10::TypeKind::OptionalType) {
    c10::List<std::optional<Tensor>> list;
    for (const IValue& element : value.toListRef())
      list.push_back(element.isNone() ? std::optional<Tensor>()
                                      : std::optional<Tensor>(one(element.toTensor())));
    return list;
  }
  if (value.isDevice()) return c10::Device(at::kCPU);
  if (value.isGenerator()) return IValue();
  return value;
}

std::vector<Tensor> tensors_of(const std::vector<IValue>& values) {
  std::vector<Tensor> all;
  for (const IValue& value : values) {
    if (value.isTensor()) all.push_back(value.toTensor());
    if (value.isTensorList())
      for (const Tensor& t : value.toTensorVector()) all.push_back(t);
  }
  return all;
}

thread_local bool t_inside = false;

struct Inside {
  Inside() { t_inside = true; }
  ~Inside() { t_inside = false; }
};

// Enqueues what an operator, or a kernel of ours, computes: on the CPU, into the memory of `results`. `given`
// is what it was called with, `arguments` the same for the CPU.
void enqueue(const std::string& name, const std::vector<IValue>& given, std::vector<IValue> arguments,
             const std::vector<IValue>& results,
             std::function<std::vector<IValue>(std::vector<IValue>)> on_cpu_now) {
  std::vector<Tensor> targets = tensors_of(results), sources = tensors_of(given);
  for (Tensor& target : targets) {
    // What the operator writes into its own arguments is there already.
    const bool own = std::any_of(sources.begin(), sources.end(), [&](const Tensor& source) {
      return source.defined() && target.defined() && source.is_same(target);
    });
    target = own || !target.defined() || target.numel() == 0 ? Tensor() : on_cpu(target);
  }
  current_stream().enqueue([name, arguments = std::move(arguments), targets = std::move(targets),
                            on_cpu_now = std::move(on_cpu_now)] {
    try {
      const at::AutoDispatchBelowADInplaceOrView no_gradients;
      const std::vector<Tensor> computed = tensors_of(on_cpu_now(arguments));
      for (size_t i = 0; i < targets.size() && i < computed.size(); ++i)
        if (targets[i].defined() && computed[i].defined()) {
          if (targets[i].sizes() != computed[i].sizes())
            stop(name + ": a result of another shape than the GPU's operator promised");
          targets[i].copy_(computed[i]);
        }
    } catch (const std::exception& error) {
      stop(name + ": " + error.what());
    }
  });
}

std::vector<IValue> as_cpu(const std::vector<IValue>& values, bool keep_host_tensors) {
  std::vector<IValue> moved;
  for (const IValue& value : values) moved.push_back(on_cpu(value, keep_host_tensors));
  return moved;
}

// Counts what this thread launches for one operator.
struct Counted {
  Counted() { launches() = {.in_operator = true}; }
  ~Counted() { launches() = {}; }
};

// An operator as it is called: libtorch's CUDA kernel for its checks and the memory of its results, then the
// CPU's for the numbers in them. What that kernel calls itself is not computed again.
class Operator : public c10::OperatorKernel {
 public:
  Operator(const c10::OperatorHandle& op, c10::SafeKernelFunction original)
      : original_(std::move(original)),
        name_(op.operator_name().name),
        substitute_(substitute_for(name_, op.operator_name().overload_name)),
        has_cpu_(op.hasComputedKernelForDispatchKey(DispatchKey::CPU)) {
    const auto& schema = op.schema();
    for (const auto& result : schema.returns()) {
      const auto kind = result.type()->kind();
      gives_number_ |= kind == c10::TypeKind::BoolType || kind == c10::TypeKind::NumberType;
    }
  }

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
    if (t_inside) return original_.callBoxed(op, keys, stack);
    trace("operator", name_.c_str());
    const Counted counted;
    const size_t arguments = op.schema().arguments().size();
    const std::vector<IValue> given(stack->end() - static_cast<std::ptrdiff_t>(arguments), stack->end());
    if (gives_number_) {
      trace("synchronize", name_.c_str());
      stack->resize(stack->size() - arguments);
      current_stream().wait();
      for (IValue& result : on_cpu_now(op, as_cpu(given, false))) stack->push_back(std::move(result));
      if (tracing()) trace_cost(name_, cost_of(op.schema(), given, {}), launches());
      return;
    }
    if (substitute_ != nullptr && substitute_->results != nullptr) {
      stack->resize(stack->size() - arguments);
      for (IValue& result : substitute_->results(given)) stack->push_back(std::move(result));
    } else {
      const Inside inside;
      original_.callBoxed(op, keys, stack);
    }
    const size_t count = op.schema().returns().size();
    const std::vector<IValue> results(stack->end() - static_cast<std::ptrdiff_t>(count), stack->end());
    if (tracing()) trace_cost(name_, cost_of(op.schema(), given, results), launches());
    if (computing()) compute(op, given, results);
  }

 private:
  std::vector<IValue> on_cpu_now(const c10::OperatorHandle& op, std::vector<IValue> arguments) const {
    const at::AutoDispatchBelowADInplaceOrView no_gradients;
    if (substitute_ != nullptr) return substitute_->compute(arguments);
    if (!has_cpu_) stop("no CPU kernel of " + name_);
    Stack stack = std::move(arguments);
    op.callBoxed(&stack);
    return stack;
  }

  // Enqueues the operator's work: on the CPU, into the memory of `results`.
  void compute(const c10::OperatorHandle& op, const std::vector<IValue>& given,
               const std::vector<IValue>& results) {
    const bool is_copy = name_ == "aten::copy_";
    bool wait = false;
    bool keep = false;
    if (is_copy) {
      const Tensor &to = given[0].toTensor(), &from = given[1].toTensor();
      const bool later = given[2].toBool();
      const auto pageable = [](const Tensor& t) {
        return t.is_cpu() && t.numel() > 0 && kind_of(t.const_data_ptr()) == MemoryKind::kPageable;
      };
      keep = to.is_cpu() || !pageable(from);
      wait = to.is_cpu() ? !later || pageable(to) : from.is_cpu() && !later;
    }
    enqueue(name_, given, as_cpu(given, keep), results,
            [this, op](std::vector<IValue> arguments) { return on_cpu_now(op, std::move(arguments)); });
    if (wait) current_stream().wait();
  }

  c10::SafeKernelFunction original_;
  std::string name_;
  const Substitute* substitute_;
  bool has_cpu_, gives_number_ = false;
};

bool writes(const c10::FunctionSchema& schema) {
  return std::any_of(schema.arguments().begin(), schema.arguments().end(), [](const c10::Argument& argument) {
    return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
  });
}

// Operators that make or describe tensors and compute nothing.
bool computes(const c10::OperatorHandle& op) {
  const std::string& name = op.operator_name().name;
  for (const char* start :
       {"aten::empty", "aten::new_empty", "aten::resize_", "aten::set_", "aten::record_stream",
        "aten::is_pinned", "aten::_pin_memory", "aten::_resize", "aten::_efficientzerotensor"})
    if (name.starts_with(start)) return false;
  if (op.schema().returns().empty() && !writes(op.schema())) return false;
  for (const auto& result : op.schema().returns())
    if (result.alias_info() != nullptr && !result.alias_info()->isWrite()) return false;
  return true;
}

// A kernel of our table (models/kernels/kernel.h) is no operator, but a range of profiles that says its name
// and its tensors.
struct KernelCall : at::ObserverContext {
  std::vector<IValue> given;
};

// Each call of a process group makes an entry of its flight recorder.
void trace_c10d() {
  const auto* call = dynamic_cast<torch::ParamCommsDebugInfo*>(
      c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::PARAM_COMMS_INFO));
  if (call != nullptr) trace("c10d", call->getCollectiveName().c_str());
}

std::unique_ptr<at::ObserverContext> begin_kernel(const at::RecordFunction& range) {
  if (tracing() && std::string_view(range.name()) == at::kParamCommsCallName) trace_c10d();
  if (t_inside || !std::string_view(range.name()).starts_with("hyperion::") || range.inputs().empty() ||
      substitute_for(range.name(), "") == nullptr || !range.inputs()[0].toTensor().is_cuda())
    return nullptr;
  auto call = std::make_unique<KernelCall>();
  call->given.assign(range.inputs().begin(), range.inputs().end());
  trace("operator", range.name());
  launches() = {.in_operator = true};
  t_inside = true;
  return call;
}

void end_kernel(const at::RecordFunction& range, at::ObserverContext* context) {
  if (context == nullptr) return;
  const std::vector<IValue>&given = static_cast<KernelCall*>(context)->given, &results = range.outputs();
  const std::string name = range.name();
  if (tracing()) {
    std::vector<c10::Argument> arguments;
    for (size_t i = 0; i < given.size(); ++i)
      arguments.emplace_back(
          std::to_string(i), c10::AnyType::get(), std::nullopt, std::nullopt,
          /*kwarg_only=*/false,
          i == 0 && name.ends_with('_') ? std::optional(c10::AliasInfo(true, {}, {})) : std::nullopt);
    trace_cost(name, cost_of({name, "", std::move(arguments), {}}, given, results), launches());
  }
  launches() = {};
  t_inside = false;
  if (computing())
    enqueue(name, given, as_cpu(given, /*keep_host_tensors=*/false), results,
            [plain = substitute_for(name, "")->compute](const std::vector<IValue>& arguments) {
              return plain(arguments);
            });
}

// Each operator that is taken over would be warned of.
struct Silence : c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

void take_over() {
  if (tracing()) trace_ranges();
  at::addGlobalCallback(at::RecordFunctionCallback(begin_kernel, end_kernel)
                            .needsInputs(true)
                            .needsOutputs(true)
                            .scopes({at::RecordScope::FUNCTION}));
  Silence silence;
  const c10::WarningUtils::WarningHandlerGuard silent(&silence);
  auto& dispatcher = c10::Dispatcher::singleton();
  auto names = dispatcher.getRegistrationsForDispatchKey(DispatchKey::CUDA);
  names.emplace_back("aten::copy_", "");
  static auto* const kept = new std::vector<c10::RegistrationHandleRAII>;
  for (const auto& name : names) {
    const auto op = dispatcher.findSchema(name);
    if (!op || !computes(*op) || !op->hasComputedKernelForDispatchKey(DispatchKey::CUDA)) continue;
    kept->push_back(
        dispatcher.registerImpl(name, DispatchKey::CUDA,
                                c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<Operator>(
                                    *op, op->getComputedKernelForDispatchKey(DispatchKey::CUDA))),
                                std::nullopt, nullptr, "simulated GPU"));
  }
}

}  // namespace

void take_over_operators() {
  static std::once_flag once;
  std::call_once(once, take_over);
}

}  // namespace simulated_gpu
