#include "data/loader.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/clock.h"
#include "base/counted.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/log.h"
#include "data/token_formats.h"
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
  if (options.tokens.vocab_size > 0 && header.vocab_size > options.tokens.vocab_size) {
    throw_data("token shard {}: has a vocabulary of {} entries, but the model's has {}: use a larger one",
               file.path.string(), header.vocab_size, options.tokens.vocab_size);
  }
}

TokenStream make_stream(const LoaderOptions& options, const SourceOptions& source) {
  std::vector<CorpusFile> files = find_corpus(source.path, source.key);
  for (CorpusFile& file : files) {
    if (file.format == CorpusFormat::kTokenShard) check_shard(file, options);
    file.facts = options.tokens;
  }
  check_token_files(files, options.tokens, source.key);
  return TokenStream({std::move(files), options.encode, options.order, source.text_field});
}

std::vector<double> weights_of(const std::vector<SourceOptions>& sources) {
  std::vector<double> weights;
  for (const SourceOptions& source : sources) weights.push_back(source.weight);
  return weights;
}

}  // namespace

std::span<const SourceState> LoaderState::named_sources() const {
  return std::span(sources).first(sources.front().name.empty() ? 0 : sources.size());
}

std::string LoaderState::to_json() const {
  const auto named = named_sources();
  nlohmann::ordered_json json = {{"version", named.empty() ? 2 : 3},
                                 {"sequence", sequence},
                                 {"seed", seed},
                                 {"shuffle", shuffle},
                                 {"fingerprint", fingerprint_text(fingerprint)}};
  if (window) json["window"] = *window;
  if (named.empty()) json["position"] = sources.front().position.to_json();
  for (const SourceState& source : named) json["sources"].push_back(source.to_json());
  return json.dump();
}

LoaderState LoaderState::from_json(std::string_view text) try {
  const auto json = parse_json(text, "data loader state", /*max_depth=*/7);
  const JsonNode node(json, "data loader state");
  const uint64_t version = node["version"].count();
  if (version < 1 || version > 3)
    throw_data("data loader state: version {}, expected 1 to 3: it was written by another Hyperion", version);
  LoaderState state;
  state.sequence = node["sequence"].count();
  state.seed = node["seed"].count();
  state.shuffle = node["shuffle"].flag();
  if (!node["window"].is_null()) state.window = node["window"].count(1);
  state.fingerprint = fingerprint_of(node["fingerprint"]);
  if (version == 3) {
    state.sources.clear();
    node["sources"].each(
        [&](const JsonNode& source) { state.sources.push_back(SourceState::from_json(source)); });
    if (state.sources.empty()) throw_data("data loader state: has no sources");
  } else {
    state.sources = {{.fingerprint = state.fingerprint,
                      .position = version == 1 ? StreamPosition::from_json_version_1(node)
                                               : StreamPosition::from_json(node["position"]),
                      .share = SourceMix::kWhole,
                      .drawn = state.sequence}};
  }
  return state;
} catch (const Error& error) {
  throw_data("{}: load another checkpoint", error.what());
}

DataLoader::DataLoader(LoaderOptions options)
    : options_(std::move(options)), mix_(weights_of(options_.sources)) {
  initial_.seed = options_.order.seed;
  initial_.shuffle = options_.order.shuffle;
  initial_.window = options_.order.window;
  initial_.fingerprint = hash_text("sources");
  initial_.sources.clear();
  for (SourceOptions& source : std::exchange(options_.sources, {})) {
    TokenStream stream = make_stream(options_, source);
    const std::vector<CorpusFile>& files = stream.files();
    uint64_t fingerprint = hash_text(options_.tokenizer_fingerprint, corpus_fingerprint(files));
    if (source.text_field.name != TextField().name)
      fingerprint = hash_text(source.text_field.name, fingerprint);
    initial_.fingerprint = source.name.empty()
                               ? fingerprint
                               : hash_text(source.name + fingerprint_text(fingerprint), initial_.fingerprint);
    initial_.sources.push_back(
        {.name = source.name, .fingerprint = fingerprint, .share = mix_.shares()[sources_.size()]});
    const bool text =
        std::ranges::all_of(files, [](const CorpusFile& file) { return holds_text(file.format); });
    if (!text || !options_.order.repeat) source.node.reset();
    sources_.push_back({std::move(source), std::move(stream)});
  }
  state_ = initial_;
}

DataLoader::~DataLoader() {
  stop_thread();
  for (const Source& source : sources_) source.stream.skipped().log_summary(source.options.path);
}

void DataLoader::stop_thread() {
  if (!thread_.joinable()) return;
  thread_.request_stop();
  for (Source& source : sources_)
    if (source.options.node) source.options.node->interrupt();
  thread_.join();
  for (Source& source : sources_)
    if (source.options.node) source.options.node->stop();
}

// The shares of the sources that have not ended.
SourceMix DataLoader::make_mix() const {
  std::vector<double> weights;
  for (const Source& source : sources_) weights.push_back(source.ended ? 0 : source.options.weight);
  const bool none = std::ranges::all_of(sources_, &Source::ended);
  return SourceMix(none ? std::vector<double>(weights.size(), 1) : weights);  // none: nothing is drawn
}

void DataLoader::restart_from(const LoaderState& state) {
  stop_thread();
  ready_.clear();
  error_ = nullptr;
  recent_.clear();
  for (size_t i = 0; i < sources_.size(); ++i) {
    Source& source = sources_[i];
    source.stream.seek(state.sources[i].position, state.seed);
    source.tokens = state.sources[i].tokens;
    const auto& epochs = source.options.max_epochs;
    source.ended = epochs && source.stream.position().epoch >= *epochs;
  }
  mix_ = make_mix();
  std::vector<uint64_t> drawn;
  bool same_shares = true;
  for (size_t i = 0; i < sources_.size(); ++i) {
    drawn.push_back(state.sources[i].drawn);
    same_shares &= state.sources[i].share == (sources_[i].ended ? 0 : mix_.shares()[i]);
  }
  if (same_shares && !mix_.restore(drawn))
    throw_data(
        "data loader state: the sequences of its sources cannot be by their shares: load another "
        "checkpoint");
  prepared_ = state.sequence;
  state_ = state.named_sources().empty() ? state : prepared_state();
}

void DataLoader::reset() {
  restart_from(initial_);
}

void DataLoader::reset(uint64_t seed) {
  initial_.seed = seed;
  reset();
}

// Returns `state` for the sources of this loader.
LoaderState DataLoader::adapted_state(const LoaderState& state) const {
  LoaderState adapted = state;
  adapted.fingerprint = initial_.fingerprint;
  const std::vector<SourceState>& saved = state.sources;
  if (initial_.named_sources().empty()) {
    const auto same = std::ranges::find(saved, initial_.fingerprint, &SourceState::fingerprint);
    if (same != saved.end()) {
      log_info("The data continue as the source {} of the checkpoint alone", same->name);
      adapted.sources = initial_.sources;
      adapted.sources.front().position = same->position;
      adapted.sources.front().drawn = state.sequence;
      return adapted;
    }
    throw_data(
        "data loader state: was saved with other data, another text field or another tokenizer (fingerprint "
        "{:016x}) than {} has now ({:016x}): restore them, or start this data from its beginning with "
        "--checkpoint.exclude_from_loading=dataloader",
        state.fingerprint, sources_.front().options.path, initial_.fingerprint);
  }
  for (const std::string& difference : source_differences(saved, initial_.sources))
    log_info("training.sources: {}", difference);
  adapted.sources = continued_sources(saved, initial_.sources);
  // The shares count from here on, unless they are those of the state.
  const auto same_mix = [](const SourceState& a, const SourceState& b) { return a.name == b.name; };
  if (std::ranges::equal(adapted.sources, saved, same_mix)) {
    for (size_t i = 0; i < saved.size(); ++i) {
      adapted.sources[i].share = saved[i].share;
      adapted.sources[i].drawn = saved[i].drawn;
    }
  }
  return adapted;
}

void DataLoader::require_same_order(const LoaderState& state) const {
  if (state.shuffle != initial_.shuffle)
    throw_data(
        "data loader state: was saved with shuffling {}, but this job has it {}: set training.shuffle back",
        state.shuffle ? "on" : "off", initial_.shuffle ? "on" : "off");
  if (!state.window) {
    for (const Source& source : sources_)
      if (const auto& files = source.stream.files(); files.size() > 1 || !is_one_block(files.front()))
        throw_data(
            "data loader state: was saved by a Hyperion that read one file after another, which this one "
            "does for a file alone: start these data from their beginning with "
            "--checkpoint.exclude_from_loading=dataloader");
  } else if (state.shuffle && state.window != initial_.window) {
    throw_data(
        "data loader state: was saved with training.shuffle_window = {}, but this job has {}, which is "
        "another order: set it back",
        *state.window, *initial_.window);
  }
}

void DataLoader::load_state(const LoaderState& saved) {
  LoaderState state = saved;
  const uint64_t all_tokens = state.sequence * static_cast<uint64_t>(options_.seq_len);
  if (state.named_sources().empty()) state.sources.front().tokens = all_tokens;
  const bool same_data =
      state.fingerprint == initial_.fingerprint &&
      std::ranges::equal(state.sources, initial_.sources, {}, &SourceState::name, &SourceState::name);
  LoaderState adapted = same_data ? state : adapted_state(state);
  require_same_order(state);
  if (adapted.named_sources().empty()) adapted.sources.front().tokens = all_tokens;
  adapted.window = initial_.window;
  if (state.seed != initial_.seed)
    log_info("The data order continues with the checkpoint's seed {} instead of {}", state.seed,
             initial_.seed);
  restart_from(adapted);
}

LoaderState DataLoader::prepared_state() {
  LoaderState state = initial_;
  state.seed = sources_.front().stream.options().seed;
  state.sequence = prepared_;
  for (size_t i = 0; i < state.sources.size(); ++i) {
    state.sources[i].position = sources_[i].stream.position();
    state.sources[i].share = sources_[i].ended ? 0 : mix_.shares()[i];
    state.sources[i].drawn = mix_.drawn()[i];
    state.sources[i].tokens = sources_[i].tokens;
  }
  return state;
}

void DataLoader::end_source_if_read(Source& source) {
  const auto& epochs = source.options.max_epochs;
  if (!epochs || source.stream.position().epoch < *epochs) return;
  source.ended = true;
  mix_ = make_mix();
}

size_t DataLoader::draw_source() {
  const auto ended = std::ranges::find(sources_, true, &Source::ended);
  const bool all = std::ranges::all_of(sources_, &Source::ended);
  if (ended != sources_.end() && (all || options_.stops_at_source_end))
    throw_data(
        "training.sources: {} been read {} after {} sequences, as max_epochs says; for more, raise it{}, or "
        "train fewer steps",
        all && sources_.size() > 1 ? "every source has" : ended->options.name + " has",
        counted(*ended->options.max_epochs, "time"), prepared_,
        all ? "" : ", set training.on_source_end = \"renormalize\" to go on with the other sources");
  return mix_.draw();
}

DataLoader::PreparedBatch DataLoader::prepare_batch() {
  PreparedBatch ready{.first = prepared_};
  const int64_t first_own = options_.dp_rank * options_.rows, end_own = first_own + options_.rows;
  const size_t length = static_cast<size_t>(options_.seq_len);
  Batch batch;
  batch.seq_len = options_.seq_len;
  batch.first_sequence = prepared_ + static_cast<uint64_t>(first_own);
  batch.tokens.reserve(static_cast<size_t>(options_.rows) * length);
  batch.labels.reserve(static_cast<size_t>(options_.rows) * length);
  window_.resize(length + 1);
  std::vector<std::optional<DocumentPlace>> begins(sources_.size());  // of the sources that this batch reads
  size_t seen = 0;                                                    // tokens of all rows
  for (int64_t row = 0; row < options_.dp_degree * options_.rows; ++row) {
    const size_t index = draw_source();
    Source& source = sources_[index];
    if (!begins[index]) {
      source.stream.position();
      begins[index] = source.stream.place();
    }
    source.tokens += length;
    if (row < first_own || row >= end_own) {
      seen += source.stream.skip(length);
    } else {
      spans_.clear();
      const auto tokens = std::span(window_).first(source.stream.read_window(window_, spans_));
      seen += tokens.size();
      append_row(tokens, spans_, options_.document_mask, batch);
      if (!source.options.name.empty()) batch.source_of_row.push_back(static_cast<int32_t>(index));
    }
    end_source_if_read(source);
  }
  if (seen >= 2) {  // an input and its label: else every rank would get nothing but padding
    ready.batch = std::move(batch);
    prepared_ += static_cast<uint64_t>(options_.dp_degree * options_.rows);
    for (size_t i = 0; i < sources_.size(); ++i) {
      if (begins[i]) ready.range.push_back({*begins[i], sources_[i].stream.place()});
    }
  } else if (prepared_ == 0) {
    throw_data("dataset {}: holds fewer than 2 tokens, too few for one prediction",
               sources_.front().options.path);
  }
  ready.after = prepared_state();
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
      lock.unlock();  // the thread that is woken needs it
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
    for (size_t i = 0; i < sources_.size(); ++i) {
      const double share = static_cast<double>(mix_.shares()[i]) / static_cast<double>(SourceMix::kWhole);
      if (sources_[i].options.node)
        sources_[i].stream.share(
            *sources_[i].options.node,
            static_cast<uint64_t>(static_cast<double>(tokens * options_.prefetch) * share));
    }
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
  }
  changed_.notify_all();
  wait_seconds_ += seconds_since(begin);
  Batch batch = std::exchange(*ready.batch, {});
  ready.batch->first_sequence = batch.first_sequence;
  ready.batch->documents = batch.documents;
  state_ = ready.after;
  recent_.push_back(std::move(ready));
  if (recent_.size() > kRememberedBatches) recent_.pop_front();
  return batch;
} catch (const Error& error) {
  if (options_.dp_degree == 1) throw;
  throw Error(error.code(), fmt::format("data-parallel rank {}: {}", options_.dp_rank, error.what()));
}

std::vector<std::vector<CorpusFile>> DataLoader::files() const {
  std::vector<std::vector<CorpusFile>> files;
  for (const Source& source : sources_) files.push_back(source.stream.files());
  return files;
}

int DataLoader::tokenising_ranks() const {
  for (const Source& source : sources_)
    if (source.options.node) return source.options.node->ranks_of_node();
  return 1;
}

std::string DataLoader::where(uint64_t sequence) const {
  for (const PreparedBatch& ready : recent_) {
    if (sequence < ready.first || sequence >= ready.after.sequence) continue;
    const uint64_t row = sequence - ready.batch->first_sequence;  // wraps to a large number before the first
    return row < ready.batch->documents.size() ? places_of_row(*ready.batch, row).describe()
                                               : describe(ready.range);
  }
  return fmt::format("sequence {}, read too long ago to be remembered", sequence);
}

}  // namespace hyperion::data
