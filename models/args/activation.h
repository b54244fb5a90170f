// The activation function of a gated feed-forward: an enumeration of models/args/activations.def, which
// nvcc reads too.
#pragma once

#include <type_traits>

namespace hyperion::models {

enum class Activation {
#define ACTIVATION(name, ...) k##name,
#include "models/args/activations.def"
};

// Calls f with a std::integral_constant of the activation.
template <typename F>
inline __attribute__((always_inline)) decltype(auto) with_activation(Activation activation, const F& f) {
  switch (activation) {
#define ACTIVATION(name, ...) \
  case Activation::k##name:   \
    return f(std::integral_constant<Activation, Activation::k##name>());
#include "models/args/activations.def"
  }
  __builtin_unreachable();
}

}  // namespace hyperion::models
