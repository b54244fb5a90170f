#include "trainer/gradient_dump.h"

#include <cstdlib>
#include <fstream>

#include <fmt/format.h>

#include "base/durable.h"
#include "base/error.h"

namespace hyperion::trainer {
namespace {
constexpr const char* kVariable = "HYPERION_DUMP_GRADIENTS";
}  // namespace

std::optional<std::filesystem::path> gradient_dump_folder(int world_size) {
  const char* folder = std::getenv(kVariable);
  if (folder == nullptr) return std::nullopt;
  if (world_size != 1) throw_config("{} needs a job of one rank, this one has {}", kVariable, world_size);
  return folder;
}

void dump_gradients(const std::filesystem::path& folder,
                    const std::vector<parallel::ShardedParameterPtr>& parameters) {
  make_folders(folder);
  for (const parallel::ShardedParameterPtr& parameter : parameters) {
    const at::Tensor grad = parameter->grad().to(at::kCPU, at::kFloat).contiguous();
    const std::filesystem::path path = folder / (parameter->parameter().fqn + ".f32");
    std::ofstream file(path, std::ios::binary);
    file.write(static_cast<const char*>(grad.data_ptr()), static_cast<std::streamsize>(grad.nbytes()));
    file.close();
    if (!file)
      throw Error(ExitCode::kSaveFailed, fmt::format("{}: cannot write {}", kVariable, path.string()));
  }
}

}  // namespace hyperion::trainer
