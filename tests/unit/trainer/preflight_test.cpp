#include "trainer/preflight.h"

#include <catch2/catch.hpp>

namespace hyperion::trainer {

using Catch::Contains;

TEST_CASE("a start warns of a shape without its weights and of documents that torchtitan would mask") {
  config::JobConfig config;
  models::ModelArgs model;
  CHECK(start_warnings(config, model, /*loads_weights=*/false).empty());
  config.model.flavor = "from_hf";
  const std::vector<std::string> shape_alone = start_warnings(config, model, /*loads_weights=*/false);
  REQUIRE(shape_alone.size() == 1);
  CHECK_THAT(shape_alone[0], Contains("takes the model's shape alone"));
  CHECK(start_warnings(config, model, /*loads_weights=*/true).empty());
  model.masks_documents = true;
  const std::vector<std::string> documents = start_warnings(config, model, /*loads_weights=*/true);
  REQUIRE(documents.size() == 1);
  CHECK_THAT(documents[0], Contains("training.document_mask = true is the same here"));
  config.training.document_mask = true;
  CHECK(start_warnings(config, model, /*loads_weights=*/true).empty());
}

}  // namespace hyperion::trainer
