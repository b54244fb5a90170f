#include "trainer/checkpointing/job_record.h"

#include <catch2/catch.hpp>
#include <fmt/format.h>

#include "base/error.h"
#include "tests/support/error_of.h"

namespace hyperion::checkpointing {

using Catch::Contains;

namespace {

checkpoint::OpenCheckpoint with_facts(const std::map<std::string, std::string>& facts) {
  checkpoint::OpenCheckpoint checkpoint;
  checkpoint.folder = "step-3";
  checkpoint.manifest.emplace();
  checkpoint.manifest->facts = facts;
  return checkpoint;
}

}  // namespace

TEST_CASE(
    "a manifest keeps what a Hugging Face folder says, the length of sequences, and ranks and batch of a "
    "step") {
  JobRecord record;
  record.imported = {R"({"eos_token_id":[1,7],"other":{"deep":[1.5,null]}})", R"({"temperature":0.6})"};
  record.seq_len = 4096;
  record.data_parallel_ranks = 4;
  record.global_batch_tokens = 65536;
  const JobRecord back = read_record(with_facts(record_facts(record)));
  CHECK(back.imported == record.imported);
  CHECK(back.seq_len == 4096);
  CHECK(back.data_parallel_ranks == 4);
  CHECK(back.global_batch_tokens == 65536);
  const JobRecord none = read_record(with_facts({{"seq_len", "long"}, {"data_parallel_ranks", "-2"}}));
  CHECK(none.data_parallel_ranks == 0);
  CHECK(none.imported == hugging_face::ImportedSettings());
  CHECK(none.seq_len == 0);
}

TEST_CASE("a manifest whose settings of Hugging Face are no JSON or too long is refused by the fact's name") {
  for (const char* fact : {"hugging_face_config", "hugging_face_generation_config"}) {
    for (const std::string& text : {std::string("{"), std::string("[7]"), std::string(2 << 20, ' '),
                                    std::string(R"({"eos_token_id": {"a": 1}})")})
      CHECK_THAT(error_of(ExitCode::kBadData,
                          [&] {
                            read_record(with_facts({{fact, text}}));
                          }),
                 Contains(fmt::format("step-3: fact {}", fact)));
  }
}

TEST_CASE("the ids of generation_config.json win over those of config.json") {
  const hugging_face::ImportedSettings both = {R"({"eos_token_id":5,"bos_token_id":4})",
                                               R"({"eos_token_id":[1,7]})"};
  CHECK(hugging_face::imported_ids(both, "eos_token_id") == std::vector<int64_t>{1, 7});
  CHECK(hugging_face::imported_ids(both, "bos_token_id") == std::vector<int64_t>{4});
  CHECK(hugging_face::imported_ids({R"({"eos_token_id":5})", R"({"eos_token_id":null})"}, "eos_token_id") ==
        std::vector<int64_t>{5});
  CHECK(hugging_face::imported_ids({}, "eos_token_id").empty());
}

}  // namespace hyperion::checkpointing
