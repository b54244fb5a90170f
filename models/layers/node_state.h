// What an autograd node keeps for its backward that is no tensor of save_for_backward().
#pragma once

#include <utility>

#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include "base/exchange.h"

namespace hyperion::models {

// State: a torch::CustomClassHolder.
template <typename State>
void keep_state(torch::autograd::AutogradContext* context, State state) {
  context->saved_data["state"] = c10::IValue::make_capsule(c10::make_intrusive<State>(std::move(state)));
}
template <typename State>
c10::intrusive_ptr<State> kept_state(torch::autograd::AutogradContext* context) {
  return c10::static_intrusive_pointer_cast<State>(context->saved_data["state"].toCapsule());
}

// The state of a node that keeps the ranks it exchanges with alone. They outlive it.
struct ExchangeOfNode : torch::CustomClassHolder {
  explicit ExchangeOfNode(Exchange* ranks) : ranks(ranks) {}
  Exchange* ranks;
};

}  // namespace hyperion::models
