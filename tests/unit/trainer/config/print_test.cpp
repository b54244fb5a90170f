#include "trainer/config/print.h"

#include <catch2/catch.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "trainer/config/schema.h"

namespace hyperion::config {

TEST_CASE("the printed configuration reads back as the same configuration") {
  const ResolvedConfig resolved = parse_config(
      "[job]\ndescription = \"a \\\"b\\\" \\\\ \\u0007 é\"\n[model]\nconverters = "
      "[\"quantize.linear.mx\"]\nargs.tied = true\n"
      "[optimizer]\nlr = 1\neps = 1e-12\n[debug]\nseed = 3\n"
      "[parallelism]\nmodule_fqns_per_model_part = [[\"a\"], []]\n",
      "job.toml", {{"training.dataset_path", "x"}, {"training.max_norm", "inf"}});
  const ResolvedConfig again = parse_config(to_toml(resolved), "again.toml", {});
  CHECK(to_json(again.config) == to_json(resolved.config));
  CHECK(again.config.job.description == resolved.config.job.description);
  CHECK(again.config.optimizer.eps == 1e-12);
  CHECK(nlohmann::json::parse(to_json(again.config))["training"]["max_norm"] == "inf");
}

TEST_CASE("each printed line says where its value came from") {
  const ResolvedConfig resolved =
      parse_config("[training]\nsteps = 5\n", "job.toml", {{"training.seq_len", "64"}});
  const std::string text = to_toml(resolved);
  const auto line = [&](const std::string& start) {
    const size_t at = text.find("\n" + start);
    REQUIRE(at != std::string::npos);
    return text.substr(at + 1, text.find('\n', at + 1) - at - 1);
  };
  CHECK_THAT(line("steps = 5"), Catch::EndsWith("  # job.toml:2:9"));
  CHECK_THAT(line("seq_len = 64"), Catch::EndsWith("  # command line"));
  CHECK_THAT(line("max_norm = 1.0"), Catch::EndsWith("  # default"));
  CHECK_THAT(line("# dataset_path is not set"), Catch::EndsWith("  # default"));
}

TEST_CASE("dimensions that the job leaves to its flavour are printed as comments with their values") {
  const ResolvedConfig resolved = parse_config(
      "[model]\nflavor = \"70B\"\nargs.n_layers = 4\n[training]\ndataset = \"c4\"", "job.toml", {});
  const std::string text = to_toml(
      resolved, {.dim = 8192, .n_layers = 4, .rope_theta = 5e5, .activation = models::Activation::kSilu});
  const auto has_line = [&](const std::string& setting, const std::string& origin) {
    return text.find(fmt::format("\n{:<48}  # {}\n", setting, origin)) != std::string::npos;
  };
  CHECK(has_line("# dim = 8192", "llama3 70B"));
  CHECK(has_line("# rope_theta = 500000.0", "llama3 70B"));
  CHECK(has_line("# activation = \"silu\"", "llama3 70B"));
  CHECK(has_line("n_layers = 4", "job.toml:3:17"));
  CHECK(has_line("# multiple_of is not set", "default"));
  CHECK(to_json(parse_config(text, "again.toml", {}).config) == to_json(resolved.config));
}

TEST_CASE("the JSON form has every key in nested objects") {
  const auto json = nlohmann::json::parse(to_json(JobConfig()));
  CHECK(json["training"]["dataloader"]["num_workers"] == 0);
  CHECK(json["training"]["dataset_path"].is_null());
  CHECK(json["optimizer"]["lr"] == 8e-4);
  size_t keys = 0;
  for (const Section& section : schema()) keys += section.options.size();
  CHECK(json.flatten().size() >= keys);
}

}  // namespace hyperion::config
