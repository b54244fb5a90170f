#include "trainer/gradient_dump.h"

#include <cstdlib>
#include <fstream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/durable.h"
#include "base/error.h"

namespace hyperion::trainer {
namespace {

constexpr const char* kVariable = "HYPERION_DUMP_GRADIENTS";

class GradientFile {
 public:
  explicit GradientFile(std::filesystem::path path)
      : path_(std::move(path)), file_(path_, std::ios::binary) {}

  void write(const void* data, size_t bytes) {
    file_.write(static_cast<const char*>(data), static_cast<std::streamsize>(bytes));
  }
  void write(const at::Tensor& gradient) {
    const at::Tensor values = gradient.to(at::kCPU, at::kFloat).contiguous();
    write(values.data_ptr(), values.nbytes());
  }
  void close() {
    file_.close();
    if (!file_) throw_save_failed("{}: cannot write {}", kVariable, path_.string());
  }

 private:
  std::filesystem::path path_;
  std::ofstream file_;
};

}  // namespace

std::optional<std::filesystem::path> gradient_dump_folder() {
  const char* folder = std::getenv(kVariable);
  if (folder == nullptr) return std::nullopt;
  return folder;
}

void dump_gradients(const std::filesystem::path& folder, int rank, int ranks,
                    const std::vector<parallel::ShardedParameterPtr>& parameters) {
  make_folders(folder);
  if (ranks == 1) {
    for (const parallel::ShardedParameterPtr& parameter : parameters) {
      GradientFile file(folder / (parameter->parameter().fqn + ".f32"));
      file.write(parameter->grad());
      file.close();
    }
    return;
  }
  nlohmann::json boxes = nlohmann::json::array();
  for (const parallel::ShardedParameterPtr& parameter : parameters) {
    const Box box = parameter->box();
    boxes.push_back({{"name", parameter->parameter().fqn},
                     {"shape", parameter->parameter().shape},
                     {"offset", box.offset},
                     {"extent", box.shape}});
  }
  const nlohmann::json head = {{"rank", rank}, {"ranks", ranks}, {"parameters", std::move(boxes)}};
  GradientFile file(folder / fmt::format("rank_{}.gradients", rank));
  const std::string line = head.dump() + "\n";
  file.write(line.data(), line.size());
  for (const parallel::ShardedParameterPtr& parameter : parameters) file.write(parameter->grad());
  file.close();
}

}  // namespace hyperion::trainer
