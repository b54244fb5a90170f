#include "trainer/checkpointing/source_policy.h"

#include <catch2/catch.hpp>

#include "data/source_mix.h"
#include "tests/unit/trainer/checkpointing/resumed_jobs.h"

namespace hyperion::checkpointing {
namespace {

using Catch::Contains;

std::vector<data::SourceState> sources(double code, uint64_t code_data = 1) {
  const data::SourceMix mix(std::vector<double>{code, 1 - code});
  return {{.name = "code", .fingerprint = code_data, .share = mix.shares()[0]},
          {.name = "wiki", .fingerprint = uint64_t{2} << 32, .share = mix.shares()[1]}};
}

config::ResolvedConfig job_of_sources(const std::vector<config::Override>& overrides = {}) {
  return config::parse_config(
      "[training]\nsteps = 10\n[[training.sources]]\npath = \"x/code\"\nweight = 3\n"
      "[[training.sources]]\npath = \"x/wiki\"\n",
      "job.toml", overrides);
}

JobContext facts_of(const std::vector<data::SourceState>& list) {
  JobContext context = facts();
  context.sources = list;
  context.data = list.empty() ? 0xabc : 0xdef;
  return context;
}

ResumePlan resume_of(const config::ResolvedConfig& now, const std::vector<data::SourceState>& saved,
                     const std::vector<data::SourceState>& list) {
  ResumeRequest request{LoadSource::kOwn, all(), fresh_plan(job_of_sources(), facts_of(saved)).settings, 4};
  request.data = facts_of(saved).data + (saved == list ? 0 : 1);
  request.sources = saved;
  return resume_plan(now, facts_of(list), request);
}

const config::Override kOverride = {"checkpoint.on_config_change", "override"};
const config::Override kKeep = {"checkpoint.on_config_change", "keep"};

}  // namespace

TEST_CASE("shares are a text that gives the weights back") {
  CHECK(shares_text(sources(0.25)) == "code=0.25,wiki=0.75");
  CHECK(shares_text({}) == "dataset_path");
  config::DataSources list = {{.path = "a/wiki"}, {.path = "b/code.jsonl"}};
  REQUIRE(take_shares("code=0.25,wiki=0.75", list));
  CHECK(list[0].weight == 0.75);
  for (const char* text : {"code=0.25", "code=1,web=2", "dataset_path", "code=x,wiki=1", ""})
    CHECK_FALSE(take_shares(text, list));
}

TEST_CASE("other shares of sources are a difference that can be kept or overridden") {
  CHECK(resume_of(job_of_sources(), sources(0.75), sources(0.75)).notes.empty());
  const std::string text = refusal([] { resume_of(job_of_sources(), sources(0.25), sources(0.75)); });
  CHECK_THAT(text, Contains("training.sources: saved code=0.25,wiki=0.75, configured code=0.75,wiki=0.25 "
                            "(job.toml:3:1)") &&
                       Contains("on_config_change=keep"));
  const ResumePlan kept = resume_of(job_of_sources({kKeep}), sources(0.25), sources(0.75));
  CHECK(kept.config.training.sources[0].weight == 0.25);
  CHECK(*find_setting(kept.settings, "training.sources") == "code=0.25,wiki=0.75");
  const ResumePlan taken = resume_of(job_of_sources({kOverride}), sources(0.25), sources(0.75));
  CHECK(*find_setting(taken.settings, "training.sources") == "code=0.75,wiki=0.25");
  CHECK_THAT(joined(taken.notes), Contains("training.sources: taking code=0.75,wiki=0.25"));
}

TEST_CASE("other data of a source, another list and one data set are differences that only override takes") {
  const std::string other =
      refusal([] { resume_of(job_of_sources(), sources(0.75), sources(0.75, uint64_t{7} << 32)); });
  CHECK_THAT(other, Contains("saved code with the data 00000000, configured code with the data 00000007"));
  CHECK_THAT(refusal([] { resume_of(job_of_sources({kKeep}), sources(0.75), sources(0.75, 7)); }),
             Contains("cannot bring back"));
  resume_of(job_of_sources({kOverride}), sources(0.75), sources(0.75, 7));

  CHECK_THAT(refusal([] { resume_of(job_of_sources(), {}, sources(0.75)); }),
             Contains("training.sources: saved dataset_path, configured code=0.75,wiki=0.25"));
  resume_of(job_of_sources({kOverride}), {}, sources(0.75));
  // A checkpoint older than sources is one of one data set.
  ResumeRequest old{LoadSource::kOwn, all(), fresh_plan(job_of_sources(), facts_of({})).settings, 4};
  std::erase_if(*old.stored, [](const auto& entry) { return entry.first == "training.sources"; });
  CHECK(resume_plan(job_of_sources(), facts_of({}), old).notes.empty());
  CHECK_THAT(refusal([&] { resume_plan(job_of_sources(), facts_of(sources(0.75)), old); }),
             Contains("saved dataset_path"));
  // Of several sources back to one of them, which needs the override too.
  std::vector<data::SourceState> saved = sources(0.75, 0xabc);
  CHECK_THAT(refusal([&] { resume_of(job_of_sources(), saved, {}); }), Contains("configured dataset_path"));
  resume_of(job_of_sources({kOverride}), saved, {});
  CHECK_THAT(refusal([&] { resume_of(job_of_sources({kOverride}), sources(0.75), {}); }),
             Contains("other data"));
}

}  // namespace hyperion::checkpointing
