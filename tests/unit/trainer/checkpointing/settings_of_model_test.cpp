// That a resume notices each dimension of the model that has changed: by a setting, or by the names and
// shapes of the parameters.
#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <catch2/catch.hpp>

#include "models/transformer.h"
#include "tests/support/error_of.h"
#include "trainer/checkpointing/resume_policy.h"

namespace hyperion::checkpointing {
namespace {

using models::ModelArgs;

struct Member {
  std::string_view name;
  void (*change)(ModelArgs&);
};

template <typename T>
void change_value(T& value) {
  if constexpr (std::is_same_v<T, bool>)
    value = !value;
  else if constexpr (std::is_enum_v<T>)
    value = value == T{} ? T{1} : T{};
  else if constexpr (std::is_same_v<T, std::string>)
    value += "2";
  else
    value += 1;
}

#define MEMBER(name) Member(#name, [](ModelArgs& args) { change_value(args.name); })

// Compared by their values (configured_settings).
constexpr Member kSettingsOfModel[] = {MEMBER(tied),
                                       MEMBER(attention.n_heads),
                                       MEMBER(attention.n_kv_heads),
                                       MEMBER(norm_eps),
                                       MEMBER(rope.theta),
                                       MEMBER(rope.scaling),
                                       MEMBER(rope.factor),
                                       MEMBER(rope.low_freq_factor),
                                       MEMBER(rope.high_freq_factor),
                                       MEMBER(rope.original_length),
                                       MEMBER(rope.style),
                                       MEMBER(activation),
                                       MEMBER(rope.yarn),
                                       MEMBER(rope.beta_fast),
                                       MEMBER(rope.beta_slow),
                                       MEMBER(rope.mscale),
                                       MEMBER(rope.truncate),
                                       MEMBER(attention.window),
                                       MEMBER(attention.window_first_layer),
                                       MEMBER(attention.window_full_every),
                                       MEMBER(experts.top_k),
                                       MEMBER(experts.score_func),
                                       MEMBER(experts.route_norm),
                                       MEMBER(experts.route_scale),
                                       MEMBER(experts.score_before_experts),
                                       MEMBER(experts.expert_groups),
                                       MEMBER(experts.limited_groups),
                                       MEMBER(experts.load_balance_coeff),
                                       MEMBER(experts.losses.z),
                                       MEMBER(experts.losses.sequence),
                                       MEMBER(experts.losses.global),
                                       MEMBER(experts.force_load_balance)};
// A checkpoint of other names or shapes is refused; those that shapes show together with a setting, too.
constexpr Member kShownByParameters[] = {MEMBER(dim),
                                         MEMBER(n_layers),
                                         MEMBER(attention.head_dim),
                                         MEMBER(dense.hidden_dim),
                                         MEMBER(vocab_size),
                                         MEMBER(attention.qk_norm),
                                         MEMBER(attention.sinks),
                                         MEMBER(attention.qkv_bias),
                                         MEMBER(attention.output_bias),
                                         MEMBER(experts.clamped),
                                         MEMBER(experts.router_bias),
                                         MEMBER(latent.kv_lora_rank),
                                         MEMBER(latent.q_lora_rank),
                                         MEMBER(experts.num_experts),
                                         MEMBER(latent.qk_nope_head_dim),
                                         MEMBER(latent.qk_rope_head_dim),
                                         MEMBER(latent.v_head_dim),
                                         MEMBER(experts.n_dense_layers),
                                         MEMBER(experts.num_shared_experts),
                                         MEMBER(experts.moe_every),
                                         MEMBER(experts.hidden_dim)};
// No step depends on them: names of files, a limit, initial weights, a warning.
constexpr Member kOfNoStep[] = {MEMBER(family), MEMBER(max_seq_len), MEMBER(depth_init),
                                MEMBER(masks_documents)};

#undef MEMBER

struct AnyValue {
  template <typename T>
  operator T() const;
};

template <typename T, typename... Values>
consteval size_t number_of_members() {
  if constexpr (requires { T{Values{}..., AnyValue{}}; })
    return number_of_members<T, Values..., AnyValue>();
  else
    return sizeof...(Values);
}

template <typename... Parts>
consteval size_t members_of_parts() {
  return number_of_members<ModelArgs>() - sizeof...(Parts) + (... + number_of_members<Parts>());
}

static_assert(members_of_parts<models::RopeArgs, models::AttentionArgs, models::LatentArgs, models::DenseArgs,
                               models::ExpertArgs, models::RouterLossArgs>() ==
                  std::size(kSettingsOfModel) + std::size(kShownByParameters) + std::size(kOfNoStep),
              "a member of ModelArgs is in none of the three lists: does a resume notice it?");

// With all parts that have settings of their own.
ModelArgs model_of_all_parts() {
  ModelArgs args;
  args.n_layers = 4;
  args.rope.yarn = true;
  args.attention.window = 8;
  args.experts.num_experts = 4;
  args.experts.n_dense_layers = 1;
  args.experts.num_shared_experts = 1;
  args.experts.hidden_dim = 8;
  return args;
}

ModelArgs with_latent_attention(ModelArgs args) {
  args.latent.kv_lora_rank = args.latent.q_lora_rank = args.latent.v_head_dim = 8;
  args.latent.qk_nope_head_dim = args.latent.qk_rope_head_dim = 4;
  return args;
}

JobContext job_of(const ModelArgs& args) {
  JobContext job;
  job.global_batch_size = 8;
  job.model = args;
  return job;
}

config::ResolvedConfig run_of(const std::string& checkpoint = "") {
  return config::parse_config(
      "[training]\nsteps = 10\n[lr_scheduler]\nwarmup_steps = 2\n[checkpoint]\n" + checkpoint, "job.toml",
      {});
}

std::string resume_refusal(const ModelArgs& saved, const ModelArgs& configured) {
  const config::ResolvedConfig run = run_of();
  const CurveSettings stored = fresh_plan(run, job_of(saved)).settings;
  return error_of(ExitCode::kUsage, [&] {
    resume_plan(run, job_of(configured),
                {LoadSource::kOwn,
                 {checkpoint::kStateComponents.begin(), checkpoint::kStateComponents.end()},
                 stored,
                 4});
  });
}

// Of a start that takes the weights alone, of a checkpoint with a trajectory or with the record of its model.
std::string transfer_refusal(const ModelArgs& saved, const ModelArgs& configured, bool has_trajectory,
                             const std::string& checkpoint = "") {
  const config::ResolvedConfig run = run_of(checkpoint);
  ResumeRequest request = {
      .source = LoadSource::kInitial, .components = {std::string(checkpoint::kModelComponent)}, .step = 4};
  if (has_trajectory)
    request.stored = fresh_plan(run, job_of(saved)).settings;
  else
    request.stored_model = model_settings(saved);
  return error_of(ExitCode::kUsage, [&] { resume_plan(run, job_of(configured), request); });
}

std::map<std::string, std::vector<int64_t>> shapes_of(const ModelArgs& args) {
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const ParameterPtr& parameter : models::Transformer(args).parameters())
    shapes[parameter->fqn] = parameter->shape;
  return shapes;
}

}  // namespace

TEST_CASE("each dimension of a model is a setting of a resume, or its parameters show it") {
  const ModelArgs plain = model_of_all_parts(), latent = with_latent_attention(plain);
  const auto changed = [](ModelArgs args, const Member& member) {
    member.change(args);
    return args;
  };
  for (const Member& member : kSettingsOfModel) {
    CAPTURE(member.name);
    CHECK_THAT(resume_refusal(plain, changed(plain, member)), Catch::Contains(": saved "));
  }
  for (const Member& member : kShownByParameters) {
    CAPTURE(member.name);
    CHECK(std::ranges::any_of(std::vector{plain, latent}, [&](const ModelArgs& args) {
      return shapes_of(changed(args, member)) != shapes_of(args);
    }));
  }
  for (const Member& member : kOfNoStep) {
    CAPTURE(member.name);
    CHECK(resume_refusal(plain, changed(plain, member)) == "nothing was thrown");
  }
}

TEST_CASE(
    "a start from the weights of another run compares what shapes do not show, unless it is overridden") {
  const ModelArgs plain = model_of_all_parts();
  for (const Member& member : kSettingsOfModel) {
    CAPTURE(member.name);
    ModelArgs changed = plain;
    member.change(changed);
    // How experts are balanced says nothing about what the weights compute.
    const bool compared = member.name != "experts.load_balance_coeff" &&
                          member.name != "experts.force_load_balance" &&
                          !std::string_view(member.name).starts_with("experts.losses.");
    for (const bool has_trajectory : {false, true}) {
      const std::string text = transfer_refusal(plain, changed, has_trajectory);
      if (compared)
        CHECK_THAT(text, Catch::Contains(": saved ") && Catch::Contains("on_config_change=override"));
      else
        CHECK(text == "nothing was thrown");
      CHECK(transfer_refusal(plain, changed, has_trajectory, "on_config_change = \"override\"\n") ==
            "nothing was thrown");
      if (compared)
        CHECK_THAT(transfer_refusal(plain, changed, has_trajectory, "resume_mode = \"transfer\"\n"),
                   Catch::Contains(": saved "));
    }
  }
  CHECK(transfer_refusal(plain, plain, false) == "nothing was thrown");
}

TEST_CASE("a resume that would deal tokens to experts otherwise names debug.moe_force_load_balance") {
  ModelArgs forced = model_of_all_parts();
  forced.experts.force_load_balance = true;
  CHECK_THAT(resume_refusal(model_of_all_parts(), forced),
             Catch::Contains("debug.moe_force_load_balance: saved false, configured true"));
}

}  // namespace hyperion::checkpointing
