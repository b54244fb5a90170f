// NCCL among processes of one host, over shared memory. A collective runs on its stream, like any other work.
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <nccl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <ATen/ATen.h>

#include "tests/simulated_gpu/cost.h"
#include "tests/simulated_gpu/memory.h"
#include "tests/simulated_gpu/nccl_communicator.h"
#include "tests/simulated_gpu/nccl_transfers.h"
#include "tests/simulated_gpu/stream.h"
#include "tests/simulated_gpu/trace.h"

using namespace simulated_gpu;

namespace {

// Device memory of a communicator: HYPERION_SIMULATED_NCCL_MEMORY bytes.
size_t buffers() {
  static const size_t bytes = [] {
    const char* given = std::getenv("HYPERION_SIMULATED_NCCL_MEMORY");
    return given == nullptr ? size_t{256} << 20 : std::strtoull(given, nullptr, 10);
  }();
  return bytes;
}

size_t item_size(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8:
    case ncclFloat8e4m3:
    case ncclFloat8e5m2:
      return 1;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32:
      return 4;
    default:
      return 8;
  }
}

at::ScalarType scalar_type(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
      return at::kChar;
    case ncclUint8:
      return at::kByte;
    case ncclInt32:
      return at::kInt;
    case ncclInt64:
      return at::kLong;
    case ncclFloat16:
      return at::kHalf;
    case ncclBfloat16:
      return at::kBFloat16;
    case ncclFloat64:
      return at::kDouble;
    default:
      return at::kFloat;
  }
}

}  // namespace

void simulated_gpu::stop(const std::string& why) {
  std::fprintf(stderr, "simulated NCCL: %s\n", why.c_str());
  std::_Exit(99);
}

void ncclComm::stop_all(const std::string& why) const {
  std::snprintf(shared->why, sizeof shared->why, "%s", why.c_str());
  shared->stopped = true;
  stop(why);
}

void simulated_gpu::leave_core(std::chrono::steady_clock::time_point begin) {
  constexpr std::chrono::microseconds kShort{200}, kLongest{5000};
  const auto waited = std::chrono::steady_clock::now() - begin;
  if (waited < kShort)
    std::this_thread::yield();
  else
    std::this_thread::sleep_for(std::min<std::chrono::nanoseconds>(waited / 4, kLongest));
}

void ncclComm::wait(std::chrono::steady_clock::time_point begin) const {
  leave_core(begin);
  if (shared->stopped) stop(shared->why);
  if (std::chrono::steady_clock::now() - begin > kPatience) stop("a rank did not come");
}

void ncclComm::require_same_call() const {
  for (int other = 0; other < size; ++other)
    if (std::strcmp(shared->members[other].call, shared->members[rank].call) != 0)
      stop_all("ranks make different calls: rank " + std::to_string(rank) + " " + shared->members[rank].call +
               ", rank " + std::to_string(other) + " " + shared->members[other].call);
}

void ncclComm::barrier() const {
  const uint32_t round = shared->round.load();
  if (shared->arrived.fetch_add(1) + 1 == static_cast<uint32_t>(size)) {
    shared->arrived = 0;
    ++shared->round;
    return;
  }
  const auto begin = std::chrono::steady_clock::now();
  while (shared->round.load() == round && !aborted) wait(begin);
}

namespace {

// Calls take(first, bytes) for each part of `bytes` bytes, when every rank's part of `give` lies in its slot.
template <typename Take>
void in_parts(const ncclComm& comm, const void* give, size_t bytes, const Take& take) {
  for (size_t first = 0; first < bytes; first += kSlot) {
    const size_t length = std::min(kSlot, bytes - first);
    std::memcpy(comm.slot(comm.rank), static_cast<const std::byte*>(give) + first, length);
    comm.barrier();
    comm.require_same_call();
    take(first, length);
    comm.barrier();
  }
}

// A call between ncclGroupStart and ncclGroupEnd.
struct Call {
  std::string name;
  ncclComm_t comm;
  cudaStream_t stream;
  const std::byte* from;
  size_t from_bytes;
  std::byte* to;
  size_t to_bytes;
  Work work;                            // of a collective
  std::optional<Message> message = {};  // of a send or receive
};
thread_local int group_depth = 0;
thread_local std::vector<Call> group;

bool overlap(const std::byte* a, size_t a_bytes, const std::byte* b, size_t b_bytes) {
  return a < b + b_bytes && b < a + a_bytes;
}

// What NCCL leaves undefined: calls of a group run at the same time.
void check_group() {
  for (const Call& call : group) {
    if (call.comm != group[0].comm || call.stream != group[0].stream)
      stop("a group of calls on different communicators or streams");
    for (const Call& other : group) {
      if (&other == &call) continue;
      if (overlap(call.to, call.to_bytes, other.to, other.to_bytes) ||
          overlap(call.to, call.to_bytes, other.from, other.from_bytes))
        stop("two calls of a group, " + call.name + " and " + other.name + ", use the same memory");
    }
  }
}

// What the ranks must agree upon in a call.
struct Signature {
  size_t count;
  ncclDataType_t type;
  std::string more{};  // which reduction, or the root of a broadcast
};

std::string name_of(ncclRedOp_t op) {
  switch (op) {
    case ncclSum:
      return " (sum)";
    case ncclAvg:
      return " (average)";
    case ncclMax:
      return " (max)";
    case ncclMin:
      return " (min)";
    default:
      return " (reduction " + std::to_string(op) + ")";
  }
}

std::string describe(const Signature& signature) {
  return std::to_string(signature.count) + " x " + at::toString(scalar_type(signature.type)) + signature.more;
}

// Inside an operator of libtorch the bytes are told by its arguments.
void trace_launch(const std::string& name, const std::vector<Call>& calls) {
  trace("nccl", name.c_str());
  if (launches().in_operator) return;
  Cost cost;
  for (const Call& call : calls) {
    cost.read += call.from_bytes;
    cost.written += call.to_bytes;
  }
  trace_cost("nccl " + name, cost, {.kernels = 1});
}

// Runs on its stream, inside a group with the other calls of the group, as one launch.
ncclResult_t launch(Call call) {
  if (group_depth > 0) {
    group.push_back(std::move(call));
    return ncclSuccess;
  }
  trace_launch(call.name, {call});
  if (call.message)
    call.comm->enqueue(call.stream, [call] { run_messages(*call.comm, {*call.message}); });
  else
    call.comm->enqueue(call.stream, call.work);
  return ncclSuccess;
}

ncclResult_t launch(const char* name, const Signature& signature, ncclComm_t comm, cudaStream_t stream,
                    const void* from, size_t from_bytes, void* to, size_t to_bytes, const Work& collective) {
  return launch({name, comm, stream, static_cast<const std::byte*>(from), from_bytes,
                 static_cast<std::byte*>(to), to_bytes, [name, signature, comm, collective] {
                   Member& own = comm->shared->members[comm->rank];
                   std::snprintf(own.call, sizeof own.call, "%s of %s", name, describe(signature).c_str());
                   ++own.collectives;
                   collective();
                 }});
}

ncclResult_t launch(bool sends, const std::byte* from, std::byte* to, const Signature& signature, int peer,
                    ncclComm_t comm, cudaStream_t stream) {
  if (peer < 0 || peer >= comm->size) stop("a message of a rank to nobody");
  if (peer == comm->rank && group_depth == 0) stop("a message of a rank to itself outside a group");
  const size_t bytes = signature.count * item_size(signature.type);
  return launch({sends ? "send" : "receive",
                 comm,
                 stream,
                 from,
                 sends ? bytes : 0,
                 to,
                 sends ? 0 : bytes,
                 {},
                 Message{sends, peer, from, to, bytes, describe(signature)}});
}

// HYPERION_SIMULATED_NCCL. remote_error: a lost peer is noticed, as over InfiniBand; else nothing is, as over
// NVLink. no_multicast: the fabric has no multicast memory for a communicator that demands NVLink SHARP.
enum class Behaviour { kUsual, kRemoteError, kNoMulticast };
Behaviour behaviour() {
  static const Behaviour found = [] {
    const char* given = std::getenv("HYPERION_SIMULATED_NCCL");
    const std::string value = given == nullptr ? "" : given;
    if (value.empty()) return Behaviour::kUsual;
    if (value == "remote_error") return Behaviour::kRemoteError;
    if (value == "no_multicast") return Behaviour::kNoMulticast;
    stop("HYPERION_SIMULATED_NCCL is '" + value + "', expected remote_error or no_multicast");
  }();
  return found;
}

// "pp/0: max CTAs 4, NVLS CTAs 1", without the fields that are NCCL's to choose.
std::string describe(const ncclConfig_t* config) {
  std::string text = config == nullptr || config->commName == nullptr ? "?" : config->commName;
  text += ":";
  if (config == nullptr) return text;
  const auto add = [&](const char* name, int value) {
    if (value != NCCL_CONFIG_UNDEF_INT)
      text += (text.back() == ':' ? " " : ", ") + std::string(name) + " " + std::to_string(value);
  };
  add("max CTAs", config->maxCTAs);
  add("NVLS CTAs", config->nvlsCTAs);
  add("shares with splits", config->splitShare);
  return text;
}

// Also of a process that its parent has not waited for yet.
bool has_ended(pid_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/stat");
  std::string text;
  std::getline(file, text);
  const size_t name_end = text.rfind(')');  // "PID (NAME) STATE ..."
  return name_end == std::string::npos || text.find_first_of("ZX", name_end) == name_end + 2;
}

bool has_lost_a_peer(const ncclComm& comm) {
  for (int rank = 0; rank < comm.size; ++rank)
    if (const Member& peer = comm.shared->members[rank]; has_ended(peer.process) && !peer.left) return true;
  return false;
}

// The reduction over the ranks' slots, in their order; sums of short floats in fp32.
void reduce_slots(const ncclComm& comm, std::byte* to, size_t bytes, ncclDataType_t type, ncclRedOp_t op) {
  const auto dtype = scalar_type(type);
  const auto count = static_cast<int64_t>(bytes / item_size(type));
  const auto wide = at::isFloatingType(dtype) && dtype != at::kDouble ? at::kFloat : dtype;
  at::Tensor result = at::from_blob(comm.slot(0), {count}, dtype).to(wide, false, true);
  for (int rank = 1; rank < comm.size; ++rank) {
    const at::Tensor other = at::from_blob(comm.slot(rank), {count}, dtype).to(wide);
    if (op == ncclSum || op == ncclAvg)
      result.add_(other);
    else if (op == ncclMax)
      result = at::maximum(result, other);
    else if (op == ncclMin)
      result = at::minimum(result, other);
    else
      stop("this reduction is not known");
  }
  if (op == ncclAvg) result.div_(comm.size);
  at::from_blob(to, {count}, dtype).copy_(result);
}

}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}
const char* ncclGetErrorString(ncclResult_t result) {
  if (result == ncclRemoteError) return "remote process exited or there was a network error";
  return result == ncclUnhandledCudaError ? "unhandled cuda error (run with NCCL_DEBUG=INFO for details)"
                                          : "error of the simulated NCCL";
}
const char* ncclGetLastError(ncclComm_t) {
  return behaviour() == Behaviour::kNoMulticast
             ? "Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152 : CUDA error 2 'out of "
               "memory'."
             : "";
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  std::random_device random;
  std::snprintf(id->internal, sizeof id->internal, "/hyperion_nccl_%08x%08x%d", random(), random(), getpid());
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  if (size > kMostRanks) return ncclInvalidArgument;
  trace("nccl", "init");
  trace("communicator", describe(config).c_str());
  if (behaviour() == Behaviour::kNoMulticast) return ncclUnhandledCudaError;
  if (!make_pages(buffers())) return ncclUnhandledCudaError;
  const int file = shm_open(id.internal, O_RDWR | O_CREAT, 0600);
  const size_t bytes = shared_bytes(size);
  if (file < 0 || ftruncate(file, static_cast<off_t>(bytes)) != 0) return ncclSystemError;
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (memory == MAP_FAILED) return ncclSystemError;
  *comm = new ncclComm{.rank = rank, .size = size, .shared = static_cast<Shared*>(memory)};
  (*comm)->shared->members[rank].process = getpid();
  (*comm)->barrier();
  if (rank == 0) shm_unlink(id.internal);
  return ncclSuccess;
}
ncclResult_t ncclCommInitRank(ncclComm_t* comm, int size, ncclUniqueId id, int rank) {
  return ncclCommInitRankConfig(comm, size, id, rank, nullptr);
}
ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  comm->finish();
  comm->shared->members[comm->rank].left = true;
  return ncclSuccess;
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  comm->finish();
  comm->shared->members[comm->rank].left = true;
  drop_pages(buffers());
  return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  comm->aborted = true;
  return ncclSuccess;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  *error = behaviour() == Behaviour::kRemoteError && has_lost_a_peer(*comm) ? ncclRemoteError : ncclSuccess;
  return ncclSuccess;
}
ncclResult_t ncclCommCount(ncclComm_t comm, int* count) {
  *count = comm->size;
  return ncclSuccess;
}
ncclResult_t ncclCommUserRank(ncclComm_t comm, int* rank) {
  *rank = comm->rank;
  return ncclSuccess;
}
ncclResult_t ncclCommRegister(ncclComm_t, void*, size_t, void**) {
  return ncclSuccess;
}
ncclResult_t ncclCommDeregister(ncclComm_t, void*) {
  return ncclSuccess;
}
ncclResult_t ncclGroupStart() {
  ++group_depth;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  if (group_depth == 0) stop("the end of a group that was not started");
  if (--group_depth > 0 || group.empty()) return ncclSuccess;
  check_group();
  trace_launch(group.size() == 1 ? group[0].name : "group of " + group[0].name, group);
  group[0].comm->enqueue(group[0].stream, [calls = group] {
    std::vector<Message> messages;
    for (const Call& call : calls) {
      if (call.message)
        messages.push_back(*call.message);
      else
        call.work();
    }
    if (!messages.empty()) run_messages(*calls[0].comm, messages);
  });
  group.clear();
  return ncclSuccess;
}

ncclResult_t ncclAllGather(const void* from, void* to, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  const size_t bytes = count * item_size(type);
  return launch("all gather", {count, type}, comm, stream, from, bytes, to,
                bytes * static_cast<size_t>(comm->size), [=] {
                  in_parts(*comm, from, bytes, [&](size_t first, size_t length) {
                    for (int rank = 0; rank < comm->size; ++rank)
                      std::memcpy(static_cast<std::byte*>(to) + bytes * static_cast<size_t>(rank) + first,
                                  comm->slot(rank), length);
                  });
                });
}

ncclResult_t ncclAllReduce(const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  const size_t bytes = count * item_size(type);
  return launch("all reduce", {count, type, name_of(op)}, comm, stream, from, bytes, to, bytes, [=] {
    in_parts(*comm, from, bytes, [&](size_t first, size_t length) {
      reduce_slots(*comm, static_cast<std::byte*>(to) + first, length, type, op);
    });
  });
}

ncclResult_t ncclReduceScatter(const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream) {
  const size_t bytes = count * item_size(type);
  return launch("reduce scatter", {count, type, name_of(op)}, comm, stream, from,
                bytes * static_cast<size_t>(comm->size), to, bytes, [=] {
                  for (int target = 0; target < comm->size; ++target)
                    in_parts(*comm, static_cast<const std::byte*>(from) + bytes * static_cast<size_t>(target),
                             bytes, [&](size_t first, size_t length) {
                               if (target == comm->rank)
                                 reduce_slots(*comm, static_cast<std::byte*>(to) + first, length, type, op);
                             });
                });
}

ncclResult_t ncclBroadcast(const void* from, void* to, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  const size_t bytes = count * item_size(type);
  return launch("broadcast", {count, type, " from rank " + std::to_string(root)}, comm, stream, from, bytes,
                to, bytes, [=] {
                  in_parts(*comm, comm->rank == root ? from : to, bytes, [&](size_t first, size_t length) {
                    std::memcpy(static_cast<std::byte*>(to) + first, comm->slot(root), length);
                  });
                });
}
ncclResult_t ncclSend(const void* from, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return launch(/*sends=*/true, static_cast<const std::byte*>(from), nullptr, {count, type}, peer, comm,
                stream);
}
ncclResult_t ncclRecv(void* to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return launch(/*sends=*/false, nullptr, static_cast<std::byte*>(to), {count, type}, peer, comm, stream);
}
ncclResult_t ncclBcast(void* memory, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                       cudaStream_t stream) {
  return ncclBroadcast(memory, memory, count, type, root, comm, stream);
}

}  // extern "C"
