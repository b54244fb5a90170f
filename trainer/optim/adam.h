// Adam and AdamW update this rank's shards (Kingma & Ba, arXiv 1412.6980; decoupled decay: Loshchilov &
// Hutter, arXiv 1711.05101). Parameters with equal settings (parameter_groups.h) are updated together. Unless
// configured otherwise decay applies to norms and embeddings too, as in v0.2.2.
#pragma once

#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "models/kernels/adam/adam.h"
#include "models/kernels/adam/rounded.h"
#include "trainer/optim/optimizer.h"
#include "trainer/optim/parameter_groups.h"

namespace hyperion::optim {

class Adam final : public Optimizer {
 public:
  Adam(const std::vector<parallel::ShardedParameterPtr>& parameters,
       const config::JobConfig::Optimizer& options, uint64_t seed = 0);
  // Counts updates in `count`, which another optimizer shares and advances.
  void share_step_count(const at::Tensor& count) {
    step_ = count;
    counts_ = false;
  }

  // Every trainable parameter has both moments.
  static std::vector<StateKind> kinds(const config::JobConfig::Optimizer& options) {
    return {{"exp_avg", state_dtype(options)}, {"exp_avg_sq", state_dtype(options)}};
  }

  void step(double lr, const at::Tensor& skip,
            const std::optional<at::Tensor>& divisor = std::nullopt) override;
  bool divides_gradients() const override;  // true for fused implementations
  std::vector<std::pair<const char*, checkpoint::Object>> settings(const Parameter& parameter) const override;

 private:
  std::vector<StateKind> kinds_of_trainable(const Parameter&) const override { return kinds(options_); }
  // The tensors of parameters with equal settings.
  struct Update {
    kernels::AdamTensors tensors;
    ParameterSettings settings;
    std::vector<uint64_t> keys{};  // of moments in bf16, as `indices`
    std::vector<kernels::ElementIndices> indices{};
  };
  // Returns the update that a parameter with these settings joins.
  Update& update_with(const ParameterSettings& settings);
  void update_fused(Update& update, double lr, const at::Tensor& skip,
                    const std::optional<at::Tensor>& divisor) const;
  void update_by_formula(Update& update, double lr, const at::Tensor& skip) const;
  // Runs the fused CPU implementation: all of step() in one pass.
  void update_in_one_pass(const Update& update, double lr, const std::optional<at::Tensor>& divisor) const;

  // Updates moments in bf16.
  void update_rounded(const Update& update, double lr, const at::Tensor& skip,
                      const std::optional<at::Tensor>& divisor) const;

  void copy_to_shards_with_gaps() const;

  config::JobConfig::Optimizer options_;
  bool counts_ = true;           // each update
  std::vector<Update> updates_;  // by settings, or one by one; without parameters that have no local rows
  std::vector<at::Tensor> masters_to_copy_, compute_shards_;     // if the compute dtype differs
  std::vector<parallel::ShardedParameterPtr> shards_with_gaps_;  // the same, of packs of stacks
  kernels::AdamUpdate* one_pass_ = nullptr;  // update_in_one_pass()'s kernel, if it takes all
};

}  // namespace hyperion::optim
