#include "trainer/config/suggest.h"

#include <catch2/catch.hpp>

using hyperion::nearest_key;
using hyperion::nearest_section;

TEST_CASE("a misspelt key finds the one that was meant") {
  CHECK(nearest_key("training.stesp") == "training.steps");
  CHECK(nearest_key("training.seqlen") == "training.seq_len");
  CHECK(nearest_key("checkpoint.intervall") == "checkpoint.interval");
  CHECK(nearest_key("trainig.steps") == "training.steps");
}

TEST_CASE("a key in the wrong section finds its own") {
  CHECK(nearest_key("training.lr") == "optimizer.lr");
  CHECK(nearest_key("training.tensor_parallel_degree") == "parallelism.tensor_parallel_degree");
  CHECK(nearest_key("lr") == "optimizer.lr");
}

TEST_CASE("nothing is suggested for what is like nothing") {
  CHECK(nearest_key("training.colour_of_the_logo").empty());
  CHECK(nearest_key(std::string(1 << 20, 'a')).empty());
  CHECK(nearest_section("zoo").empty());
}

TEST_CASE("a misspelt section finds the one that was meant") {
  CHECK(nearest_section("traning") == "training");
  CHECK(nearest_section("activation_checkpointing") == "activation_checkpoint");
  CHECK(nearest_section("lr_schedule") == "lr_scheduler");
}
