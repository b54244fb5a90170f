#include "parallel/peer_watch.h"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <optional>
#include <sstream>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "base/error.h"
#include "base/log.h"
#include "base/process.h"
#include "base/rank_list.h"
#include "parallel/failure_record.h"
#include "parallel/phase.h"

namespace hyperion::parallel {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds, std::chrono::seconds;

constexpr milliseconds kPoll{200};
// How long a rank has to end by itself, with a better sentence than ours, when a peer
constexpr seconds kAfterLoss{2};  // ended without a word.
// Beyond the response timeout, because ask_others() takes that long and some seconds more:
constexpr seconds kWhileFailing{6};  // the same, and an operation of this rank has failed by it already;
constexpr seconds kAfterFailure{8};  // it failed: for a reason that this rank may be about to find as well.

Descriptor make_own_file() {
  Descriptor file(::memfd_create("hyperion-rank", MFD_CLOEXEC));
  if (!file || ::flock(file.get(), LOCK_EX | LOCK_NB) != 0) return {};
  return file;
}

ino_t inode_of(int fd) {
  struct stat status {};
  return ::fstat(fd, &status) == 0 ? status.st_ino : 0;
}

std::string address_of(int fd) {
  if (fd < 0) return "";
  return fmt::format("/proc/{}/fd/{} {} {}", ::getpid(), fd, inode_of(fd), host_name());
}

// The file of another process; none when it is on another host or its files cannot be seen from here.
Descriptor open_file_at(const std::string& address) {
  char path[64] = "";
  unsigned long long inode = 0;
  int length = 0;
  if (std::sscanf(address.c_str(), "%63s %llu %n", path, &inode, &length) != 2) return {};
  if (address.substr(static_cast<size_t>(length)) != host_name()) return {};
  Descriptor file(::open(path, O_RDONLY | O_CLOEXEC));
  if (!file || inode_of(file.get()) != inode) return {};
  return file;
}

// Whether the process whose file this is has ended.
bool owner_ended(int fd) {
  if (::flock(fd, LOCK_SH | LOCK_NB) != 0) return false;
  ::flock(fd, LOCK_UN);
  return true;
}

std::optional<PeerWatch::End> mark_in(int fd) {
  char mark = 0;
  if (::pread(fd, &mark, 1, 0) != 1 || mark == 0) return std::nullopt;
  return static_cast<PeerWatch::End>(mark);
}

void write_mark(int fd, PeerWatch::End end) {
  const char mark = static_cast<char>(end);
  if (fd >= 0 && ::pwrite(fd, &mark, 1, 0) != 1)
    log_warning("the peers could not be told that this rank ends");
}

// What the first rank of a host knows of other hosts, in its file: a text for each kind of loss, with a mark
// before it that is set when the text is whole.
constexpr size_t kLongestText = 1000;

off_t place_of_loss(bool failed) {
  return failed ? 4096 : 2048;
}

void write_loss(int fd, const HostLinks::Loss& loss) {
  const std::string text = fmt::format("{} ", fmt::join(loss.ranks, " ")).substr(0, kLongestText);
  const off_t place = place_of_loss(loss.failed);
  const bool written = fd >= 0 && ::pwrite(fd, text.data(), text.size(), place + 1) > 0;
  if (!written || ::pwrite(fd, "!", 1, place) != 1)
    log_warning("the peers of this host could not be told of ranks that were lost on others");
}

std::optional<HostLinks::Loss> read_loss(int fd, bool failed) {
  char text[kLongestText + 2] = "";
  if (::pread(fd, text, sizeof text - 1, place_of_loss(failed)) < 2 || text[0] != '!') return std::nullopt;
  HostLinks::Loss loss{{}, failed};
  std::istringstream words(text + 1);
  for (int rank = 0; words >> rank;) loss.ranks.push_back(rank);
  return loss;
}

std::mutex current_mutex;
PeerWatch* current = nullptr;  // guarded by current_mutex

std::string address_key(int rank) {
  return fmt::format("watch/{}", rank);
}
std::string opened_key(int rank) {
  return fmt::format("watches/{}", rank);
}

}  // namespace

PeerWatch::PeerWatch(c10d::Store& store, const Environment& environment, milliseconds timeout,
                     milliseconds response_timeout, bool ends_process)
    : own_rank_(environment.rank),
      response_timeout_(response_timeout),
      ends_process_(ends_process),
      own_file_(make_own_file()) {
  store.set(address_key(own_rank_), address_of(own_file_.get()));
  // Launchers number the ranks of a host one after the other; where SLURM was told otherwise, the host's name
  // in the address does not fit, and the timeout is what ends a job that has lost a rank.
  const int first = std::max(0, own_rank_ - environment.local_rank);
  const int end = std::min(environment.world_size, first + environment.local_world_size);
  std::vector<int> unseen;
  const auto wait_for = [&](const std::string& key, int rank) {
    try {
      store.wait({key}, timeout);
    } catch (const c10::Error&) {
      throw_comm("rank {}: rank {} of this host met the others, but did not start; see its log", own_rank_,
                 rank);
    }
  };
  for (int rank = first; rank < end; ++rank) {
    if (rank == own_rank_) continue;
    wait_for(address_key(rank), rank);
    if (Descriptor file = open_file_at(store.get_to_str(address_key(rank))))
      peers_.push_back({rank, std::move(file)});
    else
      unseen.push_back(rank);
  }
  // A rank that ended before the others have its file could not be told from one that cannot be seen.
  store.set(opened_key(own_rank_), "");
  for (int rank = first; rank < end; ++rank) wait_for(opened_key(rank), rank);
  if (!unseen.empty() && ends_process_)
    log_warning(
        "rank {} cannot see whether rank {} is alive (another host, or a container of its own): if it is "
        "killed, this rank ends when comm.train_timeout_seconds have passed",
        own_rank_, rank_list(unseen));
  if (!environment.single_host() && (own_rank_ == 0 || environment.local_rank == 0))
    // A rank that goes on would keep a false verdict for ever.
    links_.emplace(store, environment, timeout, /*silence_is_loss=*/ends_process_);
  {
    const std::lock_guard lock(current_mutex);
    current = this;
  }
  if ((ends_process_ && !peers_.empty()) || links_) thread_ = std::thread([this] { watch(); });
}

PeerWatch::~PeerWatch() {
  {
    const std::lock_guard lock(current_mutex);
    current = nullptr;
  }
  leave(std::uncaught_exceptions() > 0 ? End::kFailed : End::kDone);
  if (thread_.joinable()) thread_.join();
}

void PeerWatch::leave(End end) {
  const std::lock_guard lock(mutex_);
  if (std::exchange(left_, true)) return;
  write_mark(own_file_.get(), end);
  if (links_ && end == End::kDone) links_->tell_done();
  if (links_ && end == End::kFailed) links_->tell({{own_rank_}, true});
  changed_.notify_all();
}

void PeerWatch::announce_failure() {
  const std::lock_guard lock(current_mutex);
  if (current == nullptr) return;
  const std::lock_guard watch_lock(current->mutex_);
  write_mark(current->own_file_.get(), End::kFailed);
  if (current->links_) current->links_->tell({{current->own_rank_}, true});
}

std::vector<int> PeerWatch::lost_ranks(milliseconds patience) {
  std::unique_lock lock(mutex_);
  constexpr milliseconds kTick{50};  // counted: on a busy host the time may be over before anybody has looked
  for (milliseconds left = patience;; left -= kTick) {
    look_at_peers();
    if (!lost_.empty() && !lost_failed_) return lost_;
    if (left <= milliseconds(0)) return {};
    changed_.wait_for(lock, kTick);
  }
}

void PeerWatch::watch() {
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, kPoll, [this] { return left_; })) {
    // Of ranks that end at the same time, those that say why do so because of those that do not.
    if (lost_.empty() || lost_failed_) look_at_peers();
    if (lost_.empty() || !ends_process_) continue;
    const milliseconds patience = lost_failed_         ? response_timeout_ + kAfterFailure
                                  : operation_failed() ? response_timeout_ + kWhileFailing
                                                       : kAfterLoss;
    if (Clock::now() - lost_at_ > patience) end_process();
  }
}

void PeerWatch::look_at_peers() {
  HostLinks::Loss ended, failed{{}, true};
  for (const Peer& peer : peers_) {
    const bool has_ended = owner_ended(peer.file.get());  // before its mark, which it would have set by then
    const std::optional<End> mark = mark_in(peer.file.get());
    if (mark == End::kFailed) failed.ranks.push_back(peer.rank);
    if (has_ended && !mark) ended.ranks.push_back(peer.rank);
  }
  set_lost(ended, /*tell_hosts=*/true);
  set_lost(failed, true);
  if (links_)
    for (const HostLinks::Loss& loss : links_->news()) {
      write_loss(own_file_.get(), loss);
      set_lost(loss, false);
    }
  for (const Peer& peer : peers_)
    for (const bool of_failed : {false, true})
      if (const auto loss = read_loss(peer.file.get(), of_failed)) set_lost(*loss, false);
}

// Ranks that ended without a word are why others fail.
void PeerWatch::set_lost(const HostLinks::Loss& loss, bool tell_hosts) {
  if (loss.ranks.empty() || (!lost_.empty() && (loss.failed || !lost_failed_))) return;
  lost_ = loss.ranks;
  lost_failed_ = loss.failed;
  lost_at_ = Clock::now();
  if (tell_hosts && links_) links_->tell(loss);
  changed_.notify_all();
}

// Nothing may wait for the GPU any more, and the main thread does: so no exception and no destructor.
void PeerWatch::end_process() {
  write_mark(own_file_.get(), End::kFailed);  // else the peers would take this rank for the one that was lost
  if (links_) links_->tell({{own_rank_}, true});
  const std::string why = fmt::format("rank {} has {}", rank_list(lost_), lost_failed_ ? "failed" : "ended");
  record_failed_operation({"", 0, "", current_phase(), why, lost_});
  if (!lost_failed_) record_lost_ranks(lost_);  // of an operation that had failed by then
  spdlog::default_logger()->flush();
  const std::string newest = newest_operation();
  ::_exit(report_failure(
      ExitCode::kCommunication,
      fmt::format("{}, and this rank waits for it: see its log first{}", why,
                  newest.empty() ? "" : fmt::format(" (the operation started last: {})", newest))));
}

}  // namespace hyperion::parallel
