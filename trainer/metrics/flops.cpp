#include "trainer/metrics/flops.h"

#include <algorithm>
#include <cctype>
#include <string>

namespace hyperion::metrics {
namespace {

double matmul_flops(int64_t parameters) {
  return 6.0 * static_cast<double>(parameters);
}

// Scores and value aggregation: 2 matmuls forward, 4 backward, 2 FLOPs per multiply-add. A token counts twice
// the keys that it sees, which without a window are those of the sequence.
double attention_flops(const models::ModelDescription& model, int64_t seq_len) {
  if (seq_len == 0) return 0;  // has no mean
  return model.sum_over_blocks(0, model.blocks(), [&](const models::BlockDescription& block) {
    const models::AttentionWidths& widths = *block.attention.attention;
    return 6.0 * static_cast<double>(widths.heads) *
           static_cast<double>(widths.head_dim + widths.v_head_dim) *
           (2 * widths.mean_keys(static_cast<double>(seq_len)));
  });
}

struct PeakRow {
  const char* name;     // in lower case
  const char* variant;  // must be in the name too; "" fits any
  double flops;
};

// Sources: the vendors' data sheets, dense figures (half of what is printed "with sparsity"). The first row
// that fits counts, so a longer name stands before its prefix (H200 before H20) and a variant before the
// plain name.
constexpr PeakRow kPeaks[] = {
    {"a100", "", 312e12},    {"h100", "nvl", 835e12}, {"h100", "pcie", 756e12}, {"h100", "", 989e12},
    {"h200", "nvl", 835e12}, {"h200", "", 989e12},    {"h20", "", 148e12},      {"b200", "", 2.25e15},
    {"mi355x", "", 2.5e15},  {"mi325x", "", 1.3e15},  {"mi300x", "", 1.3e15},   {"mi250x", "", 191.5e12},
    {"l40s", "", 362e12},
};
constexpr double kA100 = 312e12;

}  // namespace

double flops_per_token_square(const models::ModelDescription& model, int64_t seq_len) {
  const models::ParameterCounts parameters = models::count_parameters(model);
  return matmul_flops(parameters.active - parameters.table) + attention_flops(model, seq_len);
}

double flops_per_token_causal(const models::ModelDescription& model, int64_t seq_len) {
  const models::ParameterCounts parameters = models::count_parameters(model);
  return matmul_flops(parameters.active - parameters.embedding) + attention_flops(model, seq_len) / 2;
}

PeakFlops gpu_peak_flops(std::string_view device_name) {
  std::string name(device_name);
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
  for (const PeakRow& row : kPeaks)
    if (name.find(row.name) != std::string::npos && name.find(row.variant) != std::string::npos)
      return {row.flops};
  return {kA100, false};
}

}  // namespace hyperion::metrics
