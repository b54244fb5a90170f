// The names that autograd nodes are written with, and the state that a node keeps for its backward in
// addition to the tensors of save_for_backward().
#pragma once

#include <utility>

#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include "base/exchange.h"

namespace hyperion::models {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// keep_state() stores the state in forward, kept_state() returns it in backward. State derives from
// torch::CustomClassHolder.
template <typename State>
void keep_state(AutogradContext* context, State state) {
  context->saved_data["state"] = c10::IValue::make_capsule(c10::make_intrusive<State>(std::move(state)));
}
template <typename State>
c10::intrusive_ptr<State> kept_state(AutogradContext* context) {
  return c10::static_intrusive_pointer_cast<State>(context->saved_data["state"].toCapsule());
}

// The state of a node that keeps its process group only. The group outlives the node.
struct ExchangeOfNode : torch::CustomClassHolder {
  explicit ExchangeOfNode(Exchange* group) : group(group) {}
  Exchange* group;
};

}  // namespace hyperion::models
