// What a resume takes from where, without files or ranks.
#include "trainer/checkpointing/resume_policy.h"

#include <catch2/catch.hpp>

#include "tests/unit/trainer/checkpointing/resumed_jobs.h"
#include "trainer/checkpointing/job_record.h"
#include "trainer/config/print.h"
#include "trainer/config/schema.h"

namespace hyperion::checkpointing {

using Catch::Contains;

TEST_CASE("every setting that shapes the curve is stored and compared") {
  const CurveSettings stored = fresh_plan(job(), facts()).settings;
  for (const char* key :
       {"optimizer.name", "optimizer.lr", "optimizer.beta1", "optimizer.beta2", "optimizer.eps",
        "optimizer.weight_decay", "lr_scheduler.warmup_steps", "lr_scheduler.total_steps",
        "lr_scheduler.decay_ratio", "lr_scheduler.decay_type", "lr_scheduler.min_lr_factor",
        "training.global_batch_size", "training.seq_len", "training.max_norm", "debug.seed", "data"})
    CHECK(find_setting(stored, key) != nullptr);

  const std::vector<config::Override> changed = {{"optimizer.lr", "0.2"},
                                                 {"lr_scheduler.warmup_steps", "3"},
                                                 {"lr_scheduler.decay_ratio", ".5"},
                                                 {"lr_scheduler.decay_type", "cosine"},
                                                 {"lr_scheduler.min_lr_factor", ".1"},
                                                 {"debug.seed", "8"}};
  for (const config::Override& one : changed) {
    CAPTURE(one.name);
    JobContext new_facts = facts();
    if (one.name == "debug.seed") new_facts.seed = 8;
    const std::string text = refusal([&] { resume(job({one}), 4, new_facts); });
    CHECK_THAT(text, Contains("\n  " + one.name + ": saved ") && Contains("(command line)"));

    const ResumePlan kept = resume(job({one, {"checkpoint.on_config_change", "keep"}}), 4, new_facts);
    CHECK(kept.settings == stored);
    CHECK(kept.notes.size() == 1);
    CHECK(kept.seed == 7);

    const ResumePlan taken = resume(job({one, {"checkpoint.on_config_change", "override"}}), 4, new_facts);
    CHECK_FALSE(taken.settings == stored);
    CHECK_THAT(joined(taken.notes), Contains(one.name));
  }
  const ResumePlan kept = resume(job({{"optimizer.lr", "0.2"}, {"checkpoint.on_config_change", "keep"}}), 4);
  CHECK(kept.config.optimizer.lr == 0.1);
  CHECK_FALSE(kept.config.lr_scheduler.decay_ratio.has_value());
}

TEST_CASE("the keys of an optimizer's own table are stored in their order where it is chosen") {
  const auto stored_after_decay = [](const char* optimizer) {
    std::vector<std::string> keys;
    for (const auto& [key, text] : fresh_plan(job({{"optimizer.name", optimizer}}), facts()).settings)
      if (key.starts_with("optimizer.")) keys.push_back(key);
    return std::vector(keys.begin() + 5, keys.end() - 1);
  };
  std::vector<std::string> expected = {"optimizer.decay_norms_and_biases", "optimizer.state_dtype",
                                       "optimizer.groups"};
  CHECK(stored_after_decay("AdamW") == expected);
  expected.insert(expected.begin(),
                  {"optimizer.muon.momentum", "optimizer.muon.nesterov", "optimizer.muon.ns_steps",
                   "optimizer.muon.coefficients", "optimizer.muon.scale", "optimizer.muon.ns_dtype",
                   "optimizer.muon.adamw_lr_scale"});
  CHECK(stored_after_decay("Muon") == expected);
  CHECK(component_of_setting("optimizer.muon.momentum") == checkpoint::kOptimizerComponent);
}

TEST_CASE("a checkpoint from before model.activation was trained with silu") {
  CurveSettings stored = fresh_plan(job(), facts()).settings;
  std::erase_if(stored, [](const auto& setting) { return setting.first == "model.activation"; });
  const auto resume_with = [&](models::Activation activation) {
    JobContext now = facts();
    now.model.activation = activation;
    return resume_plan(job(), now, {LoadSource::kOwn, all(), stored, 4});
  };
  CHECK_NOTHROW(resume_with(models::Activation::kSilu));
  CHECK_THAT(refusal([&] { resume_with(models::Activation::kGeluTanh); }),
             Contains("model.args.activation: saved silu, configured gelu_tanh"));
}

TEST_CASE("recover refuses changed settings all in one message") {
  JobContext other = facts();
  other.global_batch_size = 8;
  const std::string text = refusal([&] {
    resume(job({{"optimizer.lr", "0.2"}, {"training.max_norm", "2"}}), 4, other);
  });
  CHECK_THAT(text, Contains("step 4") && Contains("optimizer.lr: saved 0.1, configured 0.2 (command line)") &&
                       Contains("training.max_norm: saved 1.0, configured 2.0") &&
                       Contains("training.global_batch_size: saved 16, configured 8 "
                                "(training.local_batch_size times the data-parallel ranks)") &&
                       Contains("on_config_change"));
  CHECK_NOTHROW(resume(job(), 4));
}

TEST_CASE(
    "another number of ranks keeps the saved batch, or the refusal names the numbers that can make it") {
  // 16 sequences on 2 ranks of 8; then other ranks with the same microbatch.
  const auto resume_on = [](int64_t ranks, std::vector<config::Override> changes = {}, int64_t batch = 0) {
    JobContext now = facts();
    now.data_parallel_degree = ranks;
    now.global_batch_size = batch > 0 ? batch : 8 * ranks;
    ResumeRequest request{LoadSource::kOwn, all(), fresh_plan(job(), facts()).settings, 4};
    request.data_parallel_degree = 2;
    return resume_plan(job(changes), now, request);
  };
  const ResumePlan kept = resume_on(1);
  CHECK(kept.config.training.global_batch_size == 16);
  CHECK(kept.settings == fresh_plan(job(), facts()).settings);
  CHECK_THAT(joined(kept.notes),
             Contains("training.global_batch_size: keeping 16 sequences (32,768 tokens per step) from the "
                      "checkpoint of 2 "
                      "data-parallel ranks: 1 here, each with 2 microbatches of 8 sequences"));
  CHECK(resume_on(2).notes.empty());
  CHECK_THAT(
      refusal([&] { resume_on(3); }),
      Contains("saved 16, configured 24") &&
          Contains(
              "3 data-parallel ranks of training.local_batch_size = 8 cannot make 16 sequences: 1 or 2 ranks "
              "can") &&
          !Contains("on_config_change=keep") && Contains("on_config_change=override"));
  CHECK_THAT(refusal([&] { resume_on(4); }), Contains("1 or 2 ranks, or training.local_batch_size = 4 can"));
  // The batch that is named is compared as before.
  CHECK_THAT(refusal([&] {
               resume_on(1, {{"training.global_batch_size", "8"}}, 8);
             }),
             Contains("saved 16, configured 8 (command line)"));
  const std::vector<config::Override> take = {{"checkpoint.on_config_change", "override"}};
  CHECK(resume_on(1, take).config.training.global_batch_size == -1);
  CHECK_THAT(joined(resume_on(1, take).notes), Contains("taking 8 from the configuration (saved: 16)"));
}

TEST_CASE("a saved batch that the job cannot run with is not kept silently") {
  JobContext now = facts();
  now.global_batch_size = 8;
  now.require_runnable = [](const config::ResolvedConfig& followed) {
    if (followed.config.training.global_batch_size == 16)
      throw_config("the pipeline has too many microbatches");
  };
  ResumeRequest request{LoadSource::kOwn, all(), fresh_plan(job(), facts()).settings, 4};
  request.data_parallel_degree = 2;
  CHECK_THAT(refusal([&] { resume_plan(job(), now, request); }), Contains("saved 16, configured 8"));
}

TEST_CASE(
    "a refusal of changed settings offers only those values of on_config_change with which the resume "
    "passes") {
  const std::string keep = "--checkpoint.on_config_change=keep",
                    override_ = "--checkpoint.on_config_change=override";
  CHECK_THAT(refusal([&] {
               resume(job({{"optimizer.lr", "0.2"}}), 4);
             }),
             Contains(keep) && Contains(override_));
  // The saved floor is 0, and the curve of 10 steps ends before the run.
  const std::vector<config::Override> longer = {{"training.steps", "12"},
                                                {"lr_scheduler.min_lr_factor", "0.1"}};
  CHECK_THAT(refusal([&] { resume(job(longer), 4); }), !Contains(keep) && Contains(override_));
  // Neither helps alone: the message says what is in the way, and that remedy works beside it.
  CHECK_THAT(refusal([&] {
               resume(job({{"training.steps", "12"}, {"optimizer.lr", "0.2"}}), 4);
             }),
             !Contains(keep) && Contains("Start with " + override_) &&
                 Contains("--lr_scheduler.total_steps=12 for"));
  CHECK_NOTHROW(resume(job({{"training.steps", "12"},
                            {"optimizer.lr", "0.2"},
                            {"checkpoint.on_config_change", "override"},
                            {"lr_scheduler.total_steps", "12"}}),
                       4));
  JobContext other = facts();
  other.model.rope.theta = 10000;
  CHECK_THAT(refusal([&] { resume(job(), 4, other); }), !Contains(keep) && Contains(override_));
}

TEST_CASE("saved values are kept only where the job can run with them") {
  JobContext parts = facts();
  parts.require_runnable = [](const config::ResolvedConfig& followed) {
    config::Problems problems;
    if (followed.config.training.seq_len % 4 != 0)
      problems.add(followed, "training.seq_len", "expected a multiple of 4");
    problems.throw_if_any("The configuration cannot be run");
  };
  CurveSettings stored = fresh_plan(job(), parts).settings;
  set_setting(stored, "training.seq_len", "2047");
  const ResumeRequest request{LoadSource::kOwn, all(), stored, 4};
  CHECK_THAT(refusal([&] { resume_plan(job(), parts, request); }),
             !Contains("on_config_change=keep") && Contains("on_config_change=override"));
  CHECK_THAT(refusal([&] {
               resume_plan(job({{"checkpoint.on_config_change", "keep"}}), parts, request);
             }),
             Contains("saved in the checkpoint: training.seq_len = 2047: expected a multiple of 4") &&
                 Contains("on_config_change=keep keeps: start with --checkpoint.on_config_change=override"));
}

TEST_CASE("a length on the other side of YaRN's is another model, which cannot be kept") {
  const config::Override name = {"model.name", "deepseek_v3"}, flavor = {"model.flavor", "16B"};
  const auto saved_with = [&](const char* length, const char* policy) {
    const CurveSettings stored = fresh_plan(job({{"training.seq_len", length}}), facts()).settings;
    return [=] {
      resume_plan(job({name, flavor, {"training.seq_len", "8192"}, {"checkpoint.on_config_change", policy}}),
                  facts(), {LoadSource::kOwn, all(), stored, 4});
    };
  };
  CHECK_THAT(refusal(saved_with("4096", "keep")),
             Contains("\n  training.seq_len: saved 4096, configured 8192"));
  CHECK_THAT(refusal(saved_with("4096", "error")), !Contains("=keep"));
  CHECK_NOTHROW(saved_with("8000", "keep")());
}

TEST_CASE("a place in shuffled data is not continued without shuffling") {
  const config::Override other = {"training.shuffle", "false"};
  const std::string begin = "start once with --checkpoint.exclude_from_loading=dataloader";
  CHECK_THAT(refusal([&] { resume(job({other}), 4); }),
             Contains("=keep to resume") && !Contains("=override") && Contains(begin));
  CHECK_THAT(
      refusal([&] {
        resume(job({other, {"optimizer.lr", "0.2"}}), 4);
      }),
      Contains("=keep to resume") && Contains("other settings need --checkpoint.on_config_change=override"));
  CHECK_THAT(
      refusal([&] {
        resume(job({other, {"training.steps", "12"}}), 4);
      }),
      !Contains("=keep") && Contains(begin) && Contains("way then: the learning-rate curve ends at step 10"));
  for (const config::Override& policy : {config::Override{"checkpoint.on_config_change", "override"},
                                         config::Override{"checkpoint.resume_mode", "continue"}})
    CHECK_THAT(refusal([&] {
                 resume(job({other, {"optimizer.lr", "0.2"}, policy}), 4);
               }),
               Contains("data of another order") && Contains("training.shuffle: saved true") &&
                   Contains(begin) && !Contains("optimizer.lr"));
  checkpoint::ComponentSet others = all();
  others.erase(std::string(checkpoint::kLoaderComponent));
  CHECK_NOTHROW(resume(job({other}), 4, facts(), others));
  CHECK(resume(job({other, {"checkpoint.on_config_change", "keep"}}), 4).config.training.shuffle == true);
}

TEST_CASE("parts that are left out by choice are named with what the run begins with in their place") {
  const std::vector<config::Override> leave = {{"checkpoint.exclude_from_loading", "dataloader,rng"}};
  const auto warnings = [](const std::vector<config::Override>& keys, LoadSource source,
                           bool weights_only = false) {
    const config::ResolvedConfig now = job(keys);
    ComponentChoice choice = choose_components(now.config, source, weights_only);
    ResumeRequest request{source, choice.loaded, fresh_plan(job(), facts()).settings, 4};
    request.left_out = choice.left_out;
    return joined(resume_plan(now, facts(), request).warnings);
  };
  CHECK(warnings({}, LoadSource::kOwn).empty());
  CHECK(warnings(leave, LoadSource::kOwn, /*weights_only=*/true).empty());
  CHECK(warnings(leave, LoadSource::kInitial).empty());  // the model alone is read in any case
  CHECK_THAT(
      warnings(leave, LoadSource::kOwn),
      Contains(
          "checkpoint.exclude_from_loading (command line): dataloader, rng of the checkpoint at step 4 are "
          "not read: the data start from their beginning (epoch 1 in the order of a new seed, as debug.seed "
          "is unset); random "
          "numbers start from the seed; this happens at every start"));
  CHECK_THAT(
      warnings({{"checkpoint.components", "model,optimizer,lr_scheduler,train_state,rng"}}, LoadSource::kOwn),
      Contains("checkpoint.components (command line): dataloader of the checkpoint at step 4 is not read"));
  const std::vector<config::Override> once = {leave[0],
                                              {"checkpoint.resume_mode", "continue"},
                                              {"checkpoint.initial_load_path", "x/step-4"},
                                              {"checkpoint.initial_load_model_only", "false"}};
  CHECK_THAT(warnings(once, LoadSource::kInitial), Contains("are not read") && !Contains("every start"));
  CHECK(warnings(once, LoadSource::kOwn).empty());
}

TEST_CASE("the options that give a job the model of a checkpoint are those that differ") {
  const auto model = [](const std::vector<config::Override>& keys) { return job(keys).config.model; };
  const auto small = model({{"model.args.n_layers", "2"}, {"model.flavor", "debugmodel"}});
  CHECK(config::model_options(small, small).empty());
  CHECK(config::model_options(small, model({{"model.args.n_layers", "3"}, {"model.hf_assets_path", "x"}})) ==
        "--model.args.n_layers=2");
  CHECK(config::model_options(model({}), model({{"model.args.dim", "64"}})) == "--model.args.dim=None");
}

TEST_CASE("what a configuration cannot bring back is refused by name") {
  JobContext other = facts();
  other.model.rope.theta = 10000;
  CHECK_THAT(refusal([&] {
               resume(job({{"checkpoint.on_config_change", "keep"}}), 4, other);
             }),
             Contains("model.args.rope_theta"));
  CHECK_NOTHROW(resume(job({{"checkpoint.on_config_change", "override"}}), 4, other));
  other = facts();
  other.global_batch_size = 24;  // three ranks of 8 sequences cannot make the saved 16
  other.data_parallel_degree = 3;
  CHECK_THAT(refusal([&] {
               resume(job({{"checkpoint.on_config_change", "keep"}}), 4, other);
             }),
             Contains("training.global_batch_size"));
  other.data_parallel_degree = 2;
  CHECK(resume(job({{"checkpoint.on_config_change", "keep"}}), 4, other).config.training.global_batch_size ==
        16);
}

TEST_CASE("other data are refused with both places and no remedy that is refused in turn") {
  ResumeRequest request{LoadSource::kOwn, all(), fresh_plan(job(), facts()).settings, 4, 0x1234567800000000,
                        "/old/data.jsonl"};
  JobContext now = facts();
  now.data_path = "/new/data.jsonl";
  for (const char* policy : {"error", "keep", "override"}) {
    const std::string text = refusal([&] {
      resume_plan(job({{"checkpoint.on_config_change", policy}}), now, request);
    });
    CHECK_THAT(
        text,
        Contains("/old/data.jsonl (fingerprint 12345678) there, /new/data.jsonl (fingerprint "
                 "00000000) here, chosen by training.dataset_path (default)") &&
            Contains("start once with --checkpoint.exclude_from_loading=dataloader (and without it again") &&
            !Contains("on_config_change"));
  }
  // Beside other changes in the same message; also where the curve is not loaded, or has no record.
  CHECK_THAT(refusal([&] {
               resume_plan(job({{"optimizer.lr", "0.2"}}), now, request);
             }),
             Contains("optimizer.lr: saved 0.1") && Contains("/old/data.jsonl"));
  request.stored.reset();
  request.data_path.clear();
  CHECK_THAT(refusal([&] { resume_plan(job(), now, request); }), Contains("data that it does not name"));
  request.components.erase("dataloader");
  CHECK_NOTHROW(resume_plan(job(), now, request));
}

TEST_CASE("how a part is left out follows from the keys that choose parts") {
  const auto remedy = [](const std::vector<config::Override>& keys, LoadSource source = LoadSource::kOwn) {
    return leave_out_remedy(job(keys).config, source, "dataloader");
  };
  const std::string after = " (and without it again when that start has saved a checkpoint)";
  CHECK(remedy({}) == "start once with --checkpoint.exclude_from_loading=dataloader" + after);
  CHECK(remedy({{"checkpoint.exclude_from_loading", "rng"}}) ==
        "start once with --checkpoint.exclude_from_loading=rng,dataloader" + after);
  CHECK(remedy({{"checkpoint.components", "model,dataloader"}}) ==
        "start once with --checkpoint.components=model" + after);
  const std::vector<config::Override> elsewhere = {{"checkpoint.initial_load_path", "x/step-1"},
                                                   {"checkpoint.resume_mode", "continue"}};
  CHECK(remedy(elsewhere) ==
        "start once with --checkpoint.resume_mode=recover --checkpoint.exclude_from_loading=dataloader" +
            after);
  CHECK(remedy(elsewhere, LoadSource::kInitial) == "start with --checkpoint.exclude_from_loading=dataloader");
}

TEST_CASE("transfer takes the weights and starts everything else from the beginning") {
  const config::ResolvedConfig now = job({{"checkpoint.enable", "true"},
                                          {"checkpoint.resume_mode", "transfer"},
                                          {"checkpoint.initial_load_path", "old/step-10"},
                                          {"optimizer.lr", "0.5"},
                                          {"training.steps", "50"}});
  const auto parts = choose_components(now.config, LoadSource::kInitial, false).loaded;
  CHECK(parts == checkpoint::ComponentSet{"model"});
  const ResumePlan plan =
      resume_plan(now, facts(), {LoadSource::kInitial, parts, fresh_plan(job(), facts()).settings, 10});
  CHECK(plan.settings == fresh_plan(now, facts()).settings);
  CHECK(plan.schedule_start == 0);
  CHECK(plan.config.lr_scheduler.total_steps == 50);
  CHECK(learning_rate(plan, 1) == 0.25);
  // Killed and started again with the same command it goes on from what it saved itself.
  CHECK(resume_mode(now.config, LoadSource::kOwn) == config::ResumeMode::kRecover);
  CHECK(choose_components(now.config, LoadSource::kOwn, false).loaded.contains("optimizer"));
}

TEST_CASE("continue takes the configuration and starts the curve at the loaded step") {
  const config::ResolvedConfig now = job({{"checkpoint.resume_mode", "continue"},
                                          {"checkpoint.exclude_from_loading", "lr_scheduler,optimizer"},
                                          {"optimizer.lr", "0.5"},
                                          {"training.steps", "30"}});
  const auto parts = choose_components(now.config, LoadSource::kOwn, false).loaded;
  CHECK(parts == checkpoint::ComponentSet{"model", "dataloader", "train_state", "rng"});
  const ResumePlan plan = resume(now, 10, facts(), parts);
  CHECK(plan.schedule_start == 10);
  CHECK(plan.config.lr_scheduler.total_steps == 20);  // the steps that are left
  CHECK(learning_rate(plan, 11) == 0.25);
  CHECK(learning_rate(plan, 12) == 0.5);
  CHECK(learning_rate(plan, 30) > 0);
  CHECK_THAT(joined(plan.notes), Contains("starts again at step 11 and has 20 steps"));

  // The second resume keeps that curve.
  const ResumePlan again = resume_plan(job({{"optimizer.lr", "0.5"}, {"training.steps", "30"}}), facts(),
                                       {LoadSource::kOwn, all(), plan.settings, 20});
  for (int64_t step = 21; step <= 30; ++step) CHECK(learning_rate(again, step) == learning_rate(plan, step));
}

TEST_CASE("continue takes changed settings without a policy and names them") {
  const ResumePlan plan = resume(job({{"checkpoint.resume_mode", "continue"}, {"optimizer.lr", "0.5"}}), 4);
  CHECK(plan.config.optimizer.lr == 0.5);
  CHECK_THAT(joined(plan.notes), Contains("optimizer.lr: taking 0.5 from the configuration (saved: 0.1)"));
}

TEST_CASE("every subset of the components can be chosen") {
  const std::vector<std::string> names(checkpoint::kStateComponents.begin(),
                                       checkpoint::kStateComponents.end());
  REQUIRE(names.size() == 7);
  for (unsigned bits = 1; bits < 1u << names.size(); ++bits) {
    std::string chosen, rest;
    checkpoint::ComponentSet expected;
    for (size_t i = 0; i < names.size(); ++i) {
      std::string& list = (bits >> i & 1) != 0 ? chosen : rest;
      list += (list.empty() ? "" : ",") + names[i];
      if ((bits >> i & 1) != 0) expected.insert(names[i]);
    }
    const std::vector<config::Override> ema = {{"ema.enable", "true"}};
    CHECK(choose_components(job({{"checkpoint.components", chosen}, ema[0]}).config, LoadSource::kOwn, false)
              .loaded == expected);
    CHECK(choose_components(job({{"checkpoint.exclude_from_loading", rest}, ema[0]}).config, LoadSource::kOwn,
                            false)
              .loaded == expected);
  }
  CHECK(choose_components(job().config, LoadSource::kOwn, false).loaded.size() == 6);  // no EMA to fill
  CHECK(choose_components(job().config, LoadSource::kOwn, true).loaded == checkpoint::ComponentSet{"model"});
  CHECK(choose_components(job().config, LoadSource::kInitial, false).loaded ==
        checkpoint::ComponentSet{"model"});
}

TEST_CASE("only settings of the loaded components are compared") {
  const config::ResolvedConfig now = job({{"optimizer.lr", "0.2"}, {"optimizer.beta1", "0.5"}});
  CHECK_NOTHROW(resume(now, 4, facts(), {"model", "train_state", "dataloader"}));
  CHECK_THAT(refusal([&] { resume(now, 4, facts(), {"optimizer"}); }), Contains("beta1"));
  const ResumePlan fresh = resume(now, 4, facts(), {"model"});
  CHECK(fresh.schedule_start == 0);
}

TEST_CASE("the configuration is compared key by key") {
  const config::TextTable before = config::config_entries(job().config);
  CHECK(before.size() > 180);
  CHECK_THAT(config::config_comparison(before, config::config_entries(job().config)),
             Contains("is the checkpoint's"));
  const config::TextTable after =
      config::config_entries(job({{"training.steps", "20"}, {"job.description", "x"}}).config);
  const std::string text = config::config_comparison(before, after);
  CHECK_THAT(text, Contains("2 keys") && Contains("training.steps: 10 -> 20") &&
                       Contains("job.description: \"default job\" -> \"x\""));
  CHECK(config::config_hash(before) != config::config_hash(after));
  CHECK_THAT(config::config_comparison({{"gone", "1"}}, {{"new", "2"}}),
             Contains("gone: 1 -> (no such key)") && Contains("new: (new key) -> 2"));
}

TEST_CASE("a checkpoint of another trainer takes the curve from the configuration and says so") {
  const ResumePlan plan = resume_plan(job(), facts(), {LoadSource::kOwn, all(), std::nullopt, 4});
  CHECK(plan.config.lr_scheduler.total_steps == 10);
  CHECK(plan.schedule_start == 0);
  CHECK(plan.seed == 7);
  REQUIRE(plan.notes.size() == 1);
  CHECK_THAT(plan.notes[0], Contains("not Hyperion's") && Contains("10 steps") && Contains("lr = 0.1"));
}

TEST_CASE("an unset seed continues with the saved one") {
  JobContext drawn = facts();
  drawn.seed = 99;
  CHECK(resume(job(), 4, drawn).seed == 7);
  CHECK(*find_setting(resume(job(), 4, drawn).settings, "debug.seed") == "7");
}

TEST_CASE("tables pass through checkpoints and hostile ones are refused") {
  const config::TextTable table = fresh_plan(job(), facts()).settings;
  CHECK(text_table(to_object(table), "step-1") == table);
  const auto bad = [](const checkpoint::Object& object) {
    return refusal([&] { text_table(object, "step-1: trajectory"); }, ExitCode::kBadData);
  };
  CHECK_THAT(bad(checkpoint::Object(3)), Contains("step-1: trajectory"));
  CHECK_FALSE(bad(checkpoint::Dict{{{checkpoint::Object("a"), checkpoint::Object(1)}}}).empty());
  CHECK_FALSE(bad(checkpoint::Dict{{{checkpoint::Object(1), checkpoint::Object("a")}}}).empty());
  CHECK_FALSE(bad(to_object({{"a", std::string(100000, 'x')}})).empty());
  CurveSettings stored = fresh_plan(job(), facts()).settings;
  for (const char* text : {"0", "-5", "x", "99999999999999999999"}) {
    set_setting(stored, "lr_scheduler.total_steps", text);
    CHECK_FALSE(refusal(
                    [&] {
                      resume_plan(job(), facts(), {LoadSource::kOwn, all(), stored, 4});
                    },
                    ExitCode::kBadData)
                    .empty());
  }
}

}  // namespace hyperion::checkpointing
