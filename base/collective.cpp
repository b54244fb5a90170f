#include "base/collective.h"

#include <exception>
#include <optional>

#include "base/counted.h"
#include "base/files.h"
#include "base/gpu_fault.h"

namespace hyperion {
namespace {

enum class FailureType : char { kError, kIncompatible, kPermission };

struct Failure {
  FailureType type = FailureType::kError;
  ExitCode code = ExitCode::kBug;
  std::string message{};
  static auto members(auto& self) { return std::tie(self.type, self.code, self.message); }

  bool same_cause(const Failure& other) const { return type == other.type && code == other.code; }
  bool same_on_all_ranks() const { return type != FailureType::kError || code == ExitCode::kUsage; }
  bool damage() const {
    return type == FailureType::kError && (code == ExitCode::kBadData || code == ExitCode::kSaveFailed);
  }
};

Failure failure_of(const Error& error) {
  const FailureType type = dynamic_cast<const IncompatibleCheckpoint*>(&error) ? FailureType::kIncompatible
                           : dynamic_cast<const PermissionDenied*>(&error)     ? FailureType::kPermission
                                                                               : FailureType::kError;
  return {type, error.code(), error.what()};
}

// An Outcome is what a rank sends: its packed result, or its failure.
using Outcome = std::variant<std::string, Failure>;

// The failure that all ranks throw, and the rank on which it occurred.
struct CommonFailure {
  Failure failure;
  int rank = 0;
  static auto members(auto& self) { return std::tie(self.failure, self.rank); }
};

[[noreturn]] void throw_failure(const Failure& failure) {
  if (failure.type == FailureType::kIncompatible) throw IncompatibleCheckpoint(failure.message);
  if (failure.type == FailureType::kPermission) throw PermissionDenied(failure.code, failure.message);
  throw Error(failure.code, failure.message);
}

// `unknown` receives the exception if it is not an Error.
Outcome outcome_of(const std::function<std::string()>& action, std::exception_ptr& unknown) {
  try {
    return action();
  } catch (const Error& error) {
    if (error.code() == ExitCode::kCommunication) throw;  // the group cannot communicate any more
    return failure_of(error);
  } catch (const std::exception& error) {
    unknown = std::current_exception();
    const Error meant = error_from(error);
    return Failure{FailureType::kError, meant.code(), meant.what()};
  }
}

// Runs on rank 0: moves the results out of the outcomes of all ranks. Returns nullopt if none failed.
std::optional<CommonFailure> common_failure(std::vector<Outcome> outcomes,
                                            std::vector<std::string>& results) {
  std::optional<CommonFailure> first;
  int num_others = 0;
  for (size_t rank = 0; rank < outcomes.size(); ++rank) {
    if (auto* result = std::get_if<std::string>(&outcomes[rank])) {
      results.push_back(std::move(*result));
      continue;
    }
    auto& failure = std::get<Failure>(outcomes[rank]);
    if (!first || (first->failure.damage() && !failure.damage())) {
      first = {std::move(failure), static_cast<int>(rank)};
      num_others = 0;
    } else if (failure.same_cause(first->failure)) {
      ++num_others;
    }
  }
  if (first && !first->failure.same_on_all_ranks()) {
    std::string& message = first->failure.message;
    message = with_rank(first->rank, message);
    if (num_others > 0) message += fmt::format(" (and {})", counted(num_others, "more rank"));
  }
  return first;
}

}  // namespace

std::string with_rank(int rank, const std::string& message) {
  const std::string who = fmt::format("rank {}: ", rank);
  return message.starts_with(who) ? message : who + message;
}

bool is_damage(const Error& error) {
  return failure_of(error).damage();
}

std::string encode_error(const Error& error) {
  return pack(failure_of(error));
}

void throw_encoded_error(const std::string& bytes) {
  throw_failure(unpack<Failure>(bytes));
}

namespace {

// The failure is another rank's, whose GPU is not this rank's.
[[noreturn]] void throw_failure_of_other(Failure failure) {
  if (failure.code == ExitCode::kHardware) failure.code = ExitCode::kCommunication;
  throw_failure(failure);
}

}  // namespace

std::vector<std::string> run_on_every_rank(Coordinator& group, const std::function<std::string()>& action) {
  std::exception_ptr unknown;
  std::vector<std::string> results;
  const auto failure = combine_on_rank_0(
      group, outcome_of(action, unknown),
      [&](std::vector<Outcome> outcomes) { return common_failure(std::move(outcomes), results); });
  if (!failure) return results;
  if (unknown && failure->rank == group.rank()) std::rethrow_exception(unknown);
  throw_failure_of_other(failure->failure);
}

std::string run_on_rank_0(Coordinator& group, const std::function<std::string()>& action) {
  std::exception_ptr unknown;
  const bool first = group.rank() == 0;
  auto outcome = unpack<Outcome>(group.broadcast(first ? pack(outcome_of(action, unknown)) : ""));
  if (auto* result = std::get_if<std::string>(&outcome)) return std::move(*result);
  if (unknown) std::rethrow_exception(unknown);
  throw_failure_of_other(std::get<Failure>(outcome));
}

}  // namespace hyperion
