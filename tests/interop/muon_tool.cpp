// muon_tool FOLDER SCALE NESTEROV DTYPE: updates a few matrices 20 times with our Muon, and writes what a
// judge needs to do the same as raw fp32: NAME.first, NAME.gradients (of each update behind each other),
// NAME.last.
#include <fstream>
#include <string>
#include <vector>

#include <ATen/ops/randn.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include "base/choice.h"
#include "tests/support/placements.h"
#include "trainer/optim/muon.h"

namespace {

void write(const std::string& path, const at::Tensor& values) {
  const at::Tensor held = values.contiguous();
  std::ofstream(path, std::ios::binary)
      .write(static_cast<const char*>(held.const_data_ptr()), static_cast<std::streamsize>(held.nbytes()));
}

}  // namespace

int main(int count, char** words) {
  using namespace hyperion;
  if (count != 5) return 2;
  const std::string folder = words[1];
  config::JobConfig::Optimizer options;
  options.name = config::OptimizerName::kMuon;
  options.weight_decay = 0.1;
  options.muon.scale = choice_of<config::MuonScale>(words[2]).value();
  options.muon.nesterov = std::string(words[3]) == "true";
  options.muon.ns_dtype =
      std::string(words[4]) == "float32" ? checkpoint::Dtype::kFloat32 : checkpoint::Dtype::kBFloat16;
  at::manual_seed(7);
  std::vector<parallel::ShardedParameterPtr> parameters;
  for (const std::vector<int64_t>& shape :
       std::vector<std::vector<int64_t>>{{48, 96}, {96, 48}, {64, 64}, {33, 7}}) {
    const std::string name = "layers.0." + std::to_string(shape[0]) + "x" + std::to_string(shape[1]);
    parameters.push_back(std::make_shared<parallel::ShardedParameter>(
        make_parameter(name, shape, Init::ones()), test::cut_by_rows(1),
        parallel::ShardingOptions{.compute_dtype = at::kFloat}));
    parameters.back()->bind_grad(at::zeros({shape[0] * shape[1]}));
    parameters.back()->master().copy_(at::randn(shape) * 0.02);
    write(folder + "/" + name + ".first", parameters.back()->master());
  }
  optim::Muon muon(parameters, options, {});
  std::vector<std::vector<at::Tensor>> gradients(parameters.size());
  for (int update = 0; update < 20; ++update) {
    for (size_t i = 0; i < parameters.size(); ++i) {
      at::Tensor grad = parameters[i]->grad();
      grad.copy_(at::randn(grad.sizes()));
      gradients[i].push_back(grad.clone());
    }
    muon.step(1e-2, at::zeros({}));
  }
  for (size_t i = 0; i < parameters.size(); ++i) {
    write(folder + "/" + parameters[i]->parameter().fqn + ".gradients", at::stack(gradients[i]));
    write(folder + "/" + parameters[i]->parameter().fqn + ".last", parameters[i]->master());
  }
  return 0;
}
