#include "checkpoint/storage/index_files.h"

#include <catch2/catch.hpp>

#include "base/error.h"
#include "tests/support/error_of.h"
#include "tests/support/temporary_folder.h"

namespace hyperion::checkpoint {
namespace {

using Names = std::vector<std::string>;

// find_index_files() of a folder that holds files of these names; or its refusal.
Names found(const Names& names) {
  const test::TemporaryFolder folder;
  for (const std::string& name : names) folder.write(name, "");
  return find_index_files(folder.path());
}
std::string refused(const Names& names) {
  return error_of(ExitCode::kBadData, [&] { found(names); });
}

}  // namespace

TEST_CASE("the index is .metadata, or the file of every rank where there is none") {
  CHECK(found({".metadata", "__0_0.distcp", "__1_0.distcp"}) == Names{".metadata"});
  CHECK(found({".metadata", "__0.metadata", "__0_0.distcp"}) == Names{".metadata"});  // as PyTorch
  CHECK(found({"__0.metadata", "__0_0.distcp"}) == Names{"__0.metadata"});
  CHECK(found({"__0.metadata", "__1.metadata", "__2.metadata", "__0_0.distcp", "__2_0.distcp",
               "__2_1.distcp"}) == Names{"__0.metadata", "__1.metadata", "__2.metadata"});
  Names many;
  for (int rank = 0; rank < 12; ++rank) many.push_back("__" + std::to_string(rank) + ".metadata");
  CHECK(found(many) == many);
}

TEST_CASE("a folder of other files has no index") {
  CHECK(found({}).empty());
  CHECK(found({"model.safetensors", "__x.metadata", "__0.metadata.tmp", "0.metadata", "__0_distcp"}).empty());
  CHECK(found({"model.safetensors", "__0_0.distcp"}).empty());
  const test::TemporaryFolder folder;
  CHECK(find_index_files(folder.write("model.safetensors", "")).empty());
  CHECK(find_index_files(folder.path() / "none").empty());
}

TEST_CASE("the index of a checkpoint that is lost is named") {
  CHECK_THAT(refused({"__0_0.distcp", "__1_0.distcp"}),
             Catch::Contains("/.metadata: is missing: __0_0.distcp is of a checkpoint in DCP format"));
  CHECK_THAT(refused({"__0.metadata", "__0_0.distcp", "__1_0.distcp"}),
             Catch::Contains("/__1.metadata: is missing") && Catch::Contains("__1_0.distcp is here"));
  CHECK_THAT(refused({"__1.metadata", "__1_0.distcp"}), Catch::Contains("/__0.metadata: is missing"));
  CHECK_THAT(refused({"__0.metadata", "__4000000000.metadata"}),
             Catch::Contains("/__1.metadata: is missing"));
  CHECK(found({"hyperion.json", "__0_0.distcp"}) ==
        Names{".metadata"});  // its absence shows when it is opened
}

}  // namespace hyperion::checkpoint
