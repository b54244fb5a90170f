#include "data/loader.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/log.h"
#include "data/token_shards.h"

namespace hyperion::data {
namespace {

constexpr size_t kRememberedBatches = 256;  // number of microbatches that where() remembers

void check_shard(const CorpusFile& file, const LoaderOptions& options) {
  const auto path = file.path / "index.json";
  const ShardHeader header = parse_shard_header(read_file(path), path);
  if (!header.tokenizer.empty() && !options.tokenizer_fingerprint.empty() &&
      header.tokenizer != options.tokenizer_fingerprint) {
    throw_data(
        "token shard {}: was made with tokenizer {} (hash {}), but {} (hash {}) is used here: use that "
        "tokenizer, or make the shard again with hyperion tokenize",
        file.path.string(), header.tokenizer_path, header.tokenizer, options.tokenizer_path,
        options.tokenizer_fingerprint);
  }
  if (options.vocab_size > 0 && header.vocab_size > static_cast<uint64_t>(options.vocab_size)) {
    throw_data("token shard {}: has a vocabulary of {} entries, but the model's has {}: use a larger one",
               file.path.string(), header.vocab_size, options.vocab_size);
  }
}

TokenStream make_stream(const LoaderOptions& options) {
  std::vector<CorpusFile> files = find_corpus(options.dataset_path, options.dataset_key);
  for (const CorpusFile& file : files)
    if (file.format == CorpusFormat::kTokenShard) check_shard(file, options);
  return {{std::move(files), options.encode, options.order, options.text_field}, options.order};
}

}  // namespace

std::string LoaderState::to_json() const {
  return nlohmann::ordered_json{{"version", 2},         {"position", position.to_json()},
                                {"sequence", sequence}, {"seed", seed},
                                {"shuffle", shuffle},   {"fingerprint", fmt::format("{:016x}", fingerprint)}}
      .dump();
}

LoaderState LoaderState::from_json(std::string_view text) try {
  const auto json = parse_json(text, "data loader state", /*max_depth=*/5);
  const JsonNode node(json, "data loader state");
  const uint64_t version = node["version"].count();
  if (version != 1 && version != 2)
    throw_data("data loader state: version {}, expected 1 or 2: it was written by another Hyperion", version);
  LoaderState state;
  state.position =
      version == 1 ? StreamPosition::from_json_version_1(node) : StreamPosition::from_json(node["position"]);
  state.sequence = node["sequence"].count();
  state.seed = node["seed"].count();
  state.shuffle = node["shuffle"].flag();
  const std::string& digits = node["fingerprint"].text();
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), state.fingerprint, 16);
  if (error != std::errc() || end != digits.data() + digits.size())
    throw_data("data loader state: fingerprint '{}' is no hexadecimal number", digits);
  return state;
} catch (const Error& error) {
  throw_data("{}: load another checkpoint", error.what());
}

DataLoader::DataLoader(LoaderOptions options) : options_(std::move(options)), stream_(make_stream(options_)) {
  initial_.seed = options_.order.seed;
  initial_.shuffle = options_.order.shuffle;
  initial_.fingerprint = hash_text(options_.tokenizer_fingerprint, corpus_fingerprint(stream_.files()));
  if (options_.text_field.name != TextField().name)
    initial_.fingerprint = hash_text(options_.text_field.name, initial_.fingerprint);
  state_ = initial_;
  const bool text = std::ranges::all_of(
      stream_.files(), [](const CorpusFile& file) { return file.format == CorpusFormat::kText; });
  if (!text || !options_.order.repeat) options_.node.reset();
}

DataLoader::~DataLoader() {
  stop_thread();
}

void DataLoader::stop_thread() {
  if (!thread_.joinable()) return;
  thread_.request_stop();
  if (options_.node) options_.node->interrupt();
  thread_.join();
  if (options_.node) options_.node->stop();
}

void DataLoader::restart_from(const LoaderState& state) {
  stop_thread();
  ready_.clear();
  error_ = nullptr;
  recent_.clear();
  stream_.seek(state.position, state.seed);
  prepared_ = state.sequence;
  state_ = state;
}

void DataLoader::reset() {
  restart_from(initial_);
}

void DataLoader::reset(uint64_t seed) {
  initial_.seed = seed;
  reset();
}

void DataLoader::load_state(const LoaderState& state) {
  if (state.fingerprint != initial_.fingerprint) {
    throw_data(
        "data loader state: was saved with other data, another text field or another tokenizer (fingerprint "
        "{:016x}) than {} has now ({:016x}): restore them, or start this data from its beginning with "
        "--checkpoint.exclude_from_loading=dataloader",
        state.fingerprint, options_.dataset_path, initial_.fingerprint);
  }
  if (state.shuffle != initial_.shuffle) {
    throw_data(
        "data loader state: was saved with shuffling {}, but this job has it {}: set training.shuffle back",
        state.shuffle ? "on" : "off", initial_.shuffle ? "on" : "off");
  }
  if (state.seed != initial_.seed)
    log_info("The data order continues with the checkpoint's seed {} instead of {}", state.seed,
             initial_.seed);
  restart_from(state);
}

DataLoader::PreparedBatch DataLoader::prepare_batch() {
  const size_t local_tokens = static_cast<size_t>(options_.rows * options_.seq_len);
  const size_t before = local_tokens * static_cast<size_t>(options_.dp_rank);
  const size_t after = local_tokens * static_cast<size_t>(options_.dp_degree - 1 - options_.dp_rank);
  PreparedBatch ready{.first = prepared_};
  stream_.position();
  const std::string begin = stream_.describe_position();
  std::vector<int64_t> tokens(local_tokens + 1);
  std::vector<DocumentSpan> spans;
  const size_t skipped = stream_.skip(before);
  tokens.resize(stream_.read_window(tokens, spans));
  if (skipped + tokens.size() >=
      2) {  // an input and its label: else every rank would get nothing but padding
    ready.batch = pack(tokens, spans, options_.rows, options_.seq_len, options_.document_mask);
    ready.batch->first_sequence = prepared_ + static_cast<uint64_t>(options_.dp_rank * options_.rows);
    stream_.skip(after);
    prepared_ += static_cast<uint64_t>(options_.dp_degree * options_.rows);
    ready.range = begin + ".." + stream_.describe_position();
  } else if (prepared_ == 0) {
    throw_data("dataset {}: holds fewer than 2 tokens, too few for one prediction", options_.dataset_path);
  }
  ready.after = initial_;
  ready.after.seed = stream_.options().seed;
  ready.after.position = stream_.position();
  ready.after.sequence = prepared_;
  return ready;
}

void DataLoader::prefetch(const std::stop_token& stop) {
  try {
    for (bool more = true; more;) {
      PreparedBatch ready = prepare_batch();
      more = ready.batch.has_value();
      std::unique_lock lock(mutex_);
      const size_t depth = static_cast<size_t>(options_.prefetch);
      if (!changed_.wait(lock, stop, [&] { return ready_.size() < depth; })) return;
      ready_.push_back(std::move(ready));
      changed_.notify_all();
    }
  } catch (...) {
    const std::lock_guard lock(mutex_);
    error_ = std::current_exception();
    changed_.notify_all();
  }
}

// Errors name the rank, because other ranks may have none.
std::optional<Batch> DataLoader::next() try {
  const auto begin = std::chrono::steady_clock::now();
  if (!thread_.joinable()) {
    const int64_t tokens = options_.dp_degree * options_.rows * options_.seq_len;  // per microbatch
    if (options_.node) stream_.share(*options_.node, static_cast<uint64_t>(tokens * options_.prefetch));
    thread_ = std::jthread([this](const std::stop_token& stop) { prefetch(stop); });
  }
  PreparedBatch ready;
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !ready_.empty() || error_; });
    if (ready_.empty()) std::rethrow_exception(error_);
    if (!ready_.front().batch) return std::nullopt;  // the end stays in the queue for the next call
    ready = std::move(ready_.front());
    ready_.pop_front();
    changed_.notify_all();
  }
  wait_seconds_ += seconds_since(begin);
  Batch batch = std::exchange(*ready.batch, {});
  ready.batch->first_sequence = batch.first_sequence;
  ready.batch->sources = batch.sources;
  state_ = ready.after;
  recent_.push_back(std::move(ready));
  if (recent_.size() > kRememberedBatches) recent_.pop_front();
  return batch;
} catch (const Error& error) {
  if (options_.dp_degree == 1) throw;
  throw Error(error.code(), fmt::format("data-parallel rank {}: {}", options_.dp_rank, error.what()));
}

std::string DataLoader::where(uint64_t sequence) const {
  for (const PreparedBatch& ready : recent_) {
    if (sequence < ready.first || sequence >= ready.after.sequence) continue;
    const uint64_t row = sequence - ready.batch->first_sequence;  // wraps to a large number before the first
    return row < ready.batch->sources.size() ? ready.batch->sources[row] : ready.range;
  }
  return fmt::format("sequence {}, read too long ago to be remembered", sequence);
}

}  // namespace hyperion::data
