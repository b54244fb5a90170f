#include "trainer/checkpointing/job_state.h"

#include <cstring>
#include <new>

#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/DeviceGuard.h>

#include "base/device/device_library.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/log.h"
#include "trainer/checkpointing/job_record.h"
#include "trainer/optim/parameter_groups.h"

namespace hyperion::checkpointing {
namespace {

using checkpoint::Object, checkpoint::TensorState;

constexpr std::pair<checkpoint::Dtype, at::ScalarType> kTypes[] = {
    {checkpoint::Dtype::kFloat32, at::kFloat},
    {checkpoint::Dtype::kFloat64, at::kDouble},
    {checkpoint::Dtype::kBFloat16, at::kBFloat16},
    {checkpoint::Dtype::kFloat16, at::kHalf},
    {checkpoint::Dtype::kInt64, at::kLong}};

// `held` is this rank's shard; undefined if another stage has the tensor.
TensorState tensor_state(std::string key, checkpoint::KeyPath path, at::ScalarType dtype,
                         checkpoint::Dims shape, const Placement& placement, const at::Tensor& held) {
  TensorState state;
  state.key = std::move(key);
  state.path = std::move(path);
  state.dtype = dtype_of(dtype);
  state.shape = std::move(shape);
  state.placement = placement;
  if (!held.defined()) return state;
  state.data = held.numel() > 0 ? held.data_ptr() : nullptr;
  state.on_device = !held.is_cpu();
  return state;
}

checkpoint::ObjectState object_state(const std::string& component, const std::string& name, Object object) {
  return {component + "." + name, {component, name}, std::move(object)};
}

// Returns the object's value if it exists. A value of a wrong type means a bad checkpoint.
template <typename T>
std::optional<T> read_value(const checkpoint::StateComponent::Find& find, std::string_view name) {
  const std::string key(name);
  const Object* object = find(key);
  if (object == nullptr) return std::nullopt;
  const T* found = object->get_if<T>();
  if (found == nullptr)
    throw_data("checkpoint: {} is {}, which is of another kind than expected", key,
               checkpoint::repr(*object));
  return *found;
}

// Reads a list of numbers if it exists.
template <typename T>
std::vector<T> read_numbers(const checkpoint::StateComponent::Find& find, const std::string& key) {
  const auto list = read_value<checkpoint::Sequence>(find, key);
  std::vector<T> values;
  for (const Object& item : list ? list->items : std::vector<Object>()) {
    const T* value = item.get_if<T>();
    if (value == nullptr)
      throw_data("checkpoint: {} holds {}, which is no such number", key, checkpoint::repr(item));
    values.push_back(*value);
  }
  return values;
}

template <typename T>
Object list_of(const std::vector<T>& values) {
  return Object::list({values.begin(), values.end()});
}

checkpoint::Bytes generator_state(const at::Generator& generator) {
  const at::Tensor state = generator.get_state().contiguous();
  return {std::string(static_cast<const char*>(state.data_ptr()), state.nbytes())};
}

void set_generator_state(at::Generator generator, const checkpoint::Bytes& bytes, const std::string& key) {
  at::Tensor state = at::empty({static_cast<int64_t>(bytes.value.size())}, at::TensorOptions(at::kByte));
  std::memcpy(state.data_ptr(), bytes.value.data(), bytes.value.size());
  try {
    generator.set_state(state);
  } catch (const c10::Error& error) {
    throw_data("checkpoint: {}: torch does not take it as the state of a random number generator: {}", key,
               error.what_without_backtrace());
  }
}

at::Tensor bytes_at(void* data, uint64_t bytes, at::Device device) {
  return at::from_blob(data, {static_cast<int64_t>(bytes)}, at::TensorOptions(at::kByte).device(device));
}

const Object* find_item(const checkpoint::Dict& dict, const char* name) {
  for (const auto& [key, value] : dict.items)
    if (key == Object(name)) return &value;
  return nullptr;
}

}  // namespace

checkpoint::Dtype dtype_of(at::ScalarType type) {
  for (const auto& [ours, torchs] : kTypes)
    if (torchs == type) return ours;
  throw_bug("no state of a job is of type {}", c10::toString(type));
}

at::ScalarType scalar_type(checkpoint::Dtype dtype) {
  for (const auto& [ours, torchs] : kTypes)
    if (ours == dtype) return torchs;
  throw_bug("no state of a job is of type {}", checkpoint::torch_name(dtype));
}

std::vector<TensorState> ModelState::tensors() {
  std::vector<TensorState> states;
  for (const ModelParameter& parameter : parameters_) {
    const Parameter& p = *parameter.parameter;
    states.push_back(tensor_state(p.fqn, {p.fqn}, parameter.dtype, p.shape, parameter.placement,
                                  parameter.sharded ? parameter.sharded->master() : at::Tensor()));
    states.back().aliases = p.aliases;
  }
  for (const auto& [balance, placement] : biases_) {
    const Parameter& bias = *balance->bias;
    states.push_back(tensor_state(bias.fqn, {bias.fqn}, at::kFloat, bias.shape, placement,
                                  placement.is_local ? bias.weight : at::Tensor()));
  }
  return states;
}

void ModelState::load(const Find&) {
  for (const ModelParameter& parameter : parameters_)
    if (const auto& held = parameter.sharded; held && held->has_separate_compute_shard())
      held->compute_shard().copy_(held->master());
}

OptimizerState::OptimizerState(const optim::Optimizer& optimizer, std::vector<ModelParameter> parameters,
                               Placement undivided, const ResumePlan& plan, const TrainState& state)
    : optimizer_(optimizer),
      parameters_(std::move(parameters)),
      undivided_(std::move(undivided)),
      plan_(plan),
      state_(state) {}

std::vector<TensorState> OptimizerState::tensors() {
  std::vector<TensorState> states;
  for (const ModelParameter& parameter : parameters_) {
    const Parameter& p = *parameter.parameter;
    if (!p.trainable) continue;
    const auto add = [&](const std::string& state, at::ScalarType dtype, checkpoint::Dims shape,
                         const Placement& placement, const at::Tensor& held) {
      const std::string path = fmt::format("state.{}.{}", p.fqn, state);
      states.push_back(
          tensor_state(name() + "." + path, {name(), path}, dtype, std::move(shape), placement, held));
    };
    const std::vector<optim::StateKind> kinds = optimizer_.kinds_of(p);
    for (size_t i = 0; i < kinds.size(); ++i)
      add(kinds[i].name, kinds[i].dtype.value_or(parameter.dtype), p.shape, parameter.placement,
          parameter.placement.is_local ? optimizer_.states(parameter.index).at(i) : at::Tensor());
    const at::Tensor& step = optimizer_.step_count();  // one counter for all
    add("step", step.scalar_type(), {}, undivided_, step);
  }
  return states;
}

std::vector<checkpoint::ObjectState> OptimizerState::objects() {
  const config::JobConfig::Optimizer& configured = plan_.config.optimizer;
  const double rate = learning_rate(plan_, state_.step + 1);
  std::vector<checkpoint::ObjectState> states;
  for (const ModelParameter& parameter : parameters_) {
    const Parameter& p = *parameter.parameter;
    if (!p.trainable) continue;
    const double scale = optim::settings_of(configured, p.fqn, p.shape.size()).lr_scale;
    std::vector<std::pair<const char*, Object>> options = optimizer_.settings(p);
    options.emplace(options.begin(), "lr", rate * scale);
    options.emplace_back("initial_lr", configured.lr * scale);
    for (const auto& [option, object] : options)
      states.push_back(object_state(name(), fmt::format("param_groups.{}.{}", p.fqn, option), object));
  }
  return states;
}

std::vector<checkpoint::ObjectState> SchedulerState::objects() {
  const int64_t next = state_.step + 1;
  return {object_state(name(), "base_lrs", Object::list({plan_.config.optimizer.lr})),
          object_state(name(), "last_epoch", state_.step),
          object_state(name(), "_step_count", next),
          object_state(name(), "_is_initial", false),
          object_state(name(), "_get_lr_called_within_step", false),
          object_state(name(), "_last_lr", Object::list({learning_rate(plan_, next)})),
          object_state(name(), "trajectory", to_object(plan_.settings))};
}

std::vector<checkpoint::ObjectState> LoaderComponent::objects() {
  return {object_state(name(), "position", loader_.state().to_json())};
}

void LoaderComponent::load(const Find& find) {
  if (const auto position = read_value<std::string>(find, checkpoint::kLoaderPositionKey))
    loader_.load_state(data::LoaderState::from_json(*position));
}

std::vector<checkpoint::ObjectState> TrainStateComponent::objects() {
  // v0.2.2 stores the count of one rank; ours counts all ranks and so has another name.
  std::vector<checkpoint::ObjectState> states = {
      object_state(name(), "step", state_.step),
      object_state(name(), "ntokens_seen", state_.tokens_seen / batch_ranks_),
      object_state(name(), "global_tokens_seen", state_.tokens_seen),
      object_state(name(), "last_loss", state_.last_loss),
      object_state(name(), "last_loss_step", state_.last_loss_step),
      object_state(name(), "config", config_)};
  if (state_.skipped_steps > 0 || !state_.gradient_norms.empty()) {
    states.push_back(object_state(name(), "skipped_steps", state_.skipped_steps));
    states.push_back(object_state(name(), "recently_skipped", list_of(state_.recently_skipped)));
    states.push_back(object_state(name(), "gradient_norms", list_of(state_.gradient_norms)));
  }
  return states;
}

void TrainStateComponent::load(const Find& find) {
  state_.step = read_value<int64_t>(find, checkpoint::kStepKey).value();
  const auto own = read_value<int64_t>(find, checkpoint::kTokensOfRankKey);
  const auto ranks = read_value<int64_t>(find, checkpoint::kLoaderRanksKey);
  state_.tokens_seen =
      read_value<int64_t>(find, name() + ".global_tokens_seen").value_or(own.value_or(0) * ranks.value_or(1));
  state_.last_loss = read_value<double>(find, name() + ".last_loss").value_or(state_.last_loss);
  state_.last_loss_step = read_value<int64_t>(find, name() + ".last_loss_step").value_or(0);
  state_.skipped_steps = read_value<int64_t>(find, name() + ".skipped_steps").value_or(0);
  state_.recently_skipped = read_numbers<int64_t>(find, name() + ".recently_skipped");
  state_.gradient_norms = read_numbers<double>(find, name() + ".gradient_norms");
  if (state_.step < 0 || state_.tokens_seen < 0)
    throw_data("checkpoint: train_state says step {} and {} tokens, which cannot be", state_.step,
               state_.tokens_seen);
}

std::vector<std::pair<const char*, at::Generator>> RngState::generators() const {
  std::vector<std::pair<const char*, at::Generator>> all = {
      {"cpu", at::globalContext().defaultGenerator(at::kCPU)}};
  if (device_.is_cuda()) all.emplace_back("cuda", at::globalContext().defaultGenerator(device_));
  return all;
}

std::vector<checkpoint::ObjectState> RngState::objects() {
  checkpoint::Dict dict;
  dict.items.emplace_back("world_size", int64_t{world_size_});
  for (const auto& [which, generator] : generators())
    dict.items.emplace_back(which, generator_state(generator));
  checkpoint::ObjectState state = object_state(name(), fmt::format("rank_{}", rank_), std::move(dict));
  state.per_rank = true;
  return {std::move(state)};
}

void RngState::load(const Find& find) {
  const std::string key = fmt::format("{}.rank_{}", name(), rank_);
  const auto dict = read_value<checkpoint::Dict>(find, key);
  const Object* ranks = dict ? find_item(*dict, "world_size") : nullptr;
  bool fits = ranks != nullptr && *ranks == Object(int64_t{world_size_});
  std::vector<std::pair<at::Generator, const checkpoint::Bytes*>> states;
  for (const auto& [which, generator] : generators()) {
    const Object* state = fits ? find_item(*dict, which) : nullptr;
    fits = state != nullptr && state->get_if<checkpoint::Bytes>() != nullptr;
    if (fits) states.emplace_back(generator, state->get_if<checkpoint::Bytes>());
  }
  if (!fits) {
    log_info(
        "Random number generators: no state for this mesh in the checkpoint, seeded by (seed, step, rank)");
    return reseed();
  }
  for (const auto& [generator, state] : states) set_generator_state(generator, *state, key);
}

void RngState::reseed() {
  const uint64_t seed = hash_text(fmt::format("{} {} {}", seed_, state_.step, rank_));
  for (auto& [which, generator] : generators()) generator.set_current_seed(seed);
}

std::vector<TensorState> EmaState::tensors() {
  std::vector<TensorState> states;
  const std::vector<at::Tensor>& averages = ema_.tensors();
  for (const ModelParameter& parameter : parameters_) {
    const std::string& fqn = parameter.parameter->fqn;
    states.push_back(tensor_state(name() + "." + fqn, {name(), fqn}, parameter.dtype,
                                  parameter.parameter->shape, parameter.placement,
                                  parameter.placement.is_local ? averages[parameter.index] : at::Tensor()));
  }
  return states;
}

void DeviceMover::to_host(void* host, const TensorState& from, uint64_t offset, uint64_t bytes) {
  if (!from.on_device) return checkpoint::MemoryMover::to_host(host, from, offset, bytes);
  const StreamScope scope(stream_);
  stream_.wait(ready_);
  bytes_at(host, bytes, at::kCPU)
      .copy_(bytes_at(static_cast<std::byte*>(from.data) + offset, bytes, device_), true);
}

void DeviceMover::from_host(const TensorState& to, uint64_t offset, const void* host, uint64_t bytes) {
  if (!to.on_device) return checkpoint::MemoryMover::from_host(to, offset, host, bytes);
  stream_.wait(DeviceStream::current(device_));  // what is still under way may use the old values
  const StreamScope scope(stream_);
  bytes_at(static_cast<std::byte*>(to.data) + offset, bytes, device_)
      .copy_(bytes_at(const_cast<void*>(host), bytes, at::kCPU), true);
}

std::shared_ptr<std::byte> DeviceMover::allocate(uint64_t bytes) {
  if (device_.is_cpu()) return checkpoint::MemoryMover::allocate(bytes);
  void* memory = device_library().allocate_pinned(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return {static_cast<std::byte*>(memory), [device = device_](void* pinned) {
            const c10::DeviceGuard guard(device);  // in whatever thread
            device_library().free_pinned(pinned);
          }};
}

}  // namespace hyperion::checkpointing
