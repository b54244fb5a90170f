// Any bytes as a config.json of Hugging Face: an Error, or the dimensions of a model.
#include <string_view>

#include "models/flavors/registry.h"
#include "tests/fuzz/fuzz.h"
#include "trainer/hugging_face/config.h"

using namespace hyperion;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    const models::ModelArgs args = hugging_face::parse_hf_config(text, "fuzz");
    if (args.dim < 1 || args.n_layers < 1 || args.attention.n_kv_heads < 1 || args.attention.n_heads < 1 ||
        args.attention.n_heads % args.attention.n_kv_heads != 0 || !(args.norm_eps > 0) ||
        !(args.rope.theta > 0))
      std::abort();
    if (args.experts.are_present() &&
        (args.experts.top_k < 1 || args.experts.hidden_dim < 1 || args.experts.moe_every < 1))
      std::abort();
    (void)args.experts.blocks(args.n_layers);
  } catch (const Error& error) {
    if (error.code() != ExitCode::kUsage && error.code() != ExitCode::kBadData) std::abort();
  }
  return 0;
}
