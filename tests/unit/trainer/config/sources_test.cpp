#include <catch2/catch.hpp>

#include "base/error.h"
#include "tests/support/error_of.h"
#include "trainer/config/load.h"
#include "trainer/config/print.h"
#include "trainer/config/reference.h"
#include "trainer/config/schema.h"
#include "trainer/config/validate.h"

namespace hyperion::config {
namespace {

using Catch::Contains;

const std::string kTwo = R"([training]
on_source_end = "renormalize"
[[training.sources]]
path = "data/wiki.jsonl.gz"
weight = 3
max_epochs = 2
[[training.sources]]
path = "data/code/*.jsonl"
text_field = "content"
)";

ResolvedConfig parsed(const std::string& toml) {
  return parse_config(toml, "job.toml", {});
}

std::string refused(const std::string& toml, const std::vector<Override>& overrides = {}) {
  return error_of(ExitCode::kUsage, [&] { parse_config(toml, "job.toml", overrides); });
}

// What the checks of a configuration say that can be read.
std::string checked(const std::string& toml) {
  return error_of(ExitCode::kUsage, [&] { require_valid_config(parsed(toml), {}, "/nowhere"); });
}

}  // namespace

TEST_CASE("sources arrive in the order of the file with their places") {
  const ResolvedConfig resolved = parsed(kTwo);
  const DataSources& sources = resolved.config.training.sources;
  REQUIRE(sources.size() == 2);
  CHECK(sources[0].path == "data/wiki.jsonl.gz");
  CHECK(sources[0].weight == 3);
  CHECK(sources[0].max_epochs == 2);
  CHECK_FALSE(sources[0].text_field);
  CHECK(sources[1].weight == 1);
  CHECK(sources[1].text_field == "content");
  CHECK(resolved.config.training.on_source_end == OnSourceEnd::kRenormalize);
  CHECK(resolved.origin("training.sources[0].weight") == "job.toml:5:10");
  CHECK(resolved.origin("training.sources") == "job.toml:3:1");
}

TEST_CASE("a source is called by the last part of its path unless it has a name") {
  const auto name = [](const std::string& path) { return name_of(DataSource{.path = path}); };
  CHECK(name("data/wiki.jsonl.gz") == "wiki");
  CHECK(name("data/code/*.jsonl") == "code");
  CHECK(name("fineweb-edu-v1.2/") == "fineweb-edu-v1.2");
  CHECK(name("/d/my data/{a,b}/*.json") == "my_data");
  CHECK(name("../*") == "");
  CHECK(name_of(DataSource{.path = "x", .name = "books"}) == "books");
}

TEST_CASE("a printed configuration with sources reads back as the same") {
  const ResolvedConfig resolved = parsed(kTwo);
  const std::string text = to_toml(resolved);
  CHECK_THAT(text, Contains("sources = [{ path = \"data/wiki.jsonl.gz\", weight = 3.0, max_epochs = 2 }, "
                            "{ path = \"data/code/*.jsonl\", text_field = \"content\" }]"));
  CHECK(config_entries(parsed(text).config) == config_entries(resolved.config));
  CHECK_THAT(to_json(resolved.config), Contains("\"max_epochs\": null"));
}

TEST_CASE("every mistake in a source is named by its place") {
  const std::string text = refused(R"([[training.sources]]
path = ""
wieght = 2
[[training.sources]]
path = "a"
weight = 0
max_epochs = 1.5
[[training.sources]]
weight = "x"
text_field = 1
[[validation.sources]]
path = "b"
weight = 2
)");
  CHECK_THAT(text, Contains("job.toml:2:8: training.sources[0].path = \"\": expected a path"));
  CHECK_THAT(text,
             Contains("job.toml:3:10: training.sources[0].wieght = 2: there is no such key; did you mean "
                      "weight?"));
  CHECK_THAT(text, Contains("job.toml:6:10: training.sources[1].weight = 0: expected a number above 0"));
  CHECK_THAT(text,
             Contains("job.toml:7:14: training.sources[1].max_epochs = 1.5: expected a whole number of at "
                      "least 1"));
  CHECK_THAT(text, Contains("job.toml:8:1: training.sources[2]: has no path"));
  CHECK_THAT(text, Contains("training.sources[2].weight = \"x\": expected a number"));
  CHECK_THAT(text, Contains("job.toml:13:10: validation.sources[0].weight = 2: there is no such key"));
  CHECK_THAT(refused("[training.sources]\npath = \"a\""),
             Contains("training.sources = {...}: expected tables, each written [[training.sources]]"));
  CHECK_THAT(refused("[training]\nsources = [\"a\"]"), Contains("each written [[training.sources]]"));
  CHECK_THAT(refused("[[training.sources]]\npath = \"hf://datasets/a/b\""), Contains("hf download"));
  for (const char* name : {"training.sources", "training.sources.weight"})
    CHECK_THAT(refused("", {{name, "a"}}), Contains("in the file alone"));
}

TEST_CASE("sources that contradict another key or each other are refused") {
  CHECK_THAT(checked(kTwo + "[training.dataloader]\nnum_workers = 0\n[validation]\nenable = true\n"),
             Contains("training.sources[0].path = \"data/wiki.jsonl.gz\": no such file or folder") &&
                 Contains("validation.dataset = \"c4_validation\": expected validation.dataset_path"));
  CHECK_THAT(
      checked("[training]\ndataset_path = \"a\"\n[[training.sources]]\npath = \"b\""),
      Contains("job.toml:2:16: training.dataset_path = \"a\": training.sources (job.toml:3:1) name the "
               "data too"));
  CHECK_THAT(checked("[[training.sources]]\npath = \"x/web.jsonl\"\n[[training.sources]]\npath = \"y/web\""),
             Contains("job.toml:4:8: training.sources[1].path = \"y/web\": the source 0 is called web too"));
  CHECK_THAT(checked("[[training.sources]]\npath = \"a\"\nname = \"a b\""),
             Contains("job.toml:3:8: training.sources[0].name = \"a b\": expected 1 to 100 letters"));
  CHECK_THAT(checked("[[training.sources]]\npath = \"*\""), Contains("give it a name"));
}

TEST_CASE("the reference has the keys of a source") {
  const std::string text = configuration_reference();
  CHECK_THAT(text, Contains("### [[training.sources]]"));
  CHECK_THAT(text, Contains("| `weight` | number | `1.0` |"));
  for (const char* list : {"training.sources", "validation.sources"})
    for (const Option& key : source_keys(list).options) CHECK(key.meaning.size() <= 110);
}

}  // namespace hyperion::config
