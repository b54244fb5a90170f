#include "base/collective.h"

#include <exception>
#include <optional>

#include "base/counted.h"
#include "base/files.h"
#include "base/resources.h"

namespace hyperion {
namespace {

// First character of what a rank sends: a text that its action returned, or an error by its type.
constexpr char kText = '+', kError = 'e', kIncompatible = 'i', kPermission = 'p';

char type_of(const Error& error) {
  if (dynamic_cast<const IncompatibleCheckpoint*>(&error) != nullptr) return kIncompatible;
  if (dynamic_cast<const PermissionDenied*>(&error) != nullptr) return kPermission;
  return kError;
}

std::string encode(char type, ExitCode code, const std::string& message) {
  return fmt::format("{}{} {}", type, static_cast<int>(code), message);
}

struct Failure {
  char type = kError;
  ExitCode code = ExitCode::kBug;
  std::string message{};

  bool same_cause(const Failure& other) const { return type == other.type && code == other.code; }
  bool same_on_all_ranks() const { return type != kError || code == ExitCode::kUsage; }
  bool damage() const {
    return type == kError && (code == ExitCode::kBadData || code == ExitCode::kSaveFailed);
  }
};

Failure decode(const std::string& text) {
  const size_t blank = text.find(' ');
  if (blank == std::string::npos) throw_bug("no encoded error: {}", text);
  return {text.front(), static_cast<ExitCode>(std::stoi(text.substr(1, blank - 1))), text.substr(blank + 1)};
}

[[noreturn]] void throw_failure(const Failure& failure) {
  if (failure.type == kIncompatible) throw IncompatibleCheckpoint(failure.message);
  if (failure.type == kPermission) throw PermissionDenied(failure.code, failure.message);
  throw Error(failure.code, failure.message);
}

// What this rank sends. `unknown`: what was thrown where that is no Error.
std::string outcome_of(const std::function<std::string()>& action, std::exception_ptr& unknown) {
  try {
    return kText + action();
  } catch (const Error& error) {
    if (error.code() == ExitCode::kCommunication) throw;  // the other ranks cannot be told
    return encode_error(error);
  } catch (const std::exception& error) {
    unknown = std::current_exception();
    const auto resource = exhausted_resource(error);
    return encode(kError, resource ? ExitCode::kResources : ExitCode::kBug,
                  resource ? resource->what : fmt::format("internal error: {}", error.what()));
  }
}

// Rank 0: what to tell all ranks about their outcomes, from which it takes the first character. Empty when
// none failed; else the rank whose failure counts, a blank, and the error that all ranks throw.
std::string verdict_of(std::vector<std::string>& outcomes) {
  std::optional<Failure> first;
  size_t first_rank = 0;
  int others = 0;
  for (size_t rank = 0; rank < outcomes.size(); ++rank) {
    std::string& text = outcomes[rank];
    if (text.starts_with(kText)) {
      text.erase(0, 1);
      continue;
    }
    Failure failure = decode(text);
    if (!first || (first->damage() && !failure.damage())) {
      first = std::move(failure);
      first_rank = rank;
      others = 0;
    } else if (failure.same_cause(*first)) {
      ++others;
    }
  }
  if (!first) return {};
  if (!first->same_on_all_ranks()) {
    const std::string who = fmt::format("rank {}: ", first_rank);
    if (!first->message.starts_with(who)) first->message = who + first->message;
    if (others > 0) first->message += fmt::format(" (and {})", counted(others, "more rank"));
  }
  return fmt::format("{} {}", first_rank, encode(first->type, first->code, first->message));
}

}  // namespace

bool is_damage(const Error& error) {
  return Failure{.type = type_of(error), .code = error.code()}.damage();
}

std::string encode_error(const Error& error) {
  return encode(type_of(error), error.code(), error.what());
}

void throw_encoded_error(const std::string& text) {
  throw_failure(decode(text));
}

std::vector<std::string> run_on_every_rank(Coordinator& ranks, const std::function<std::string()>& action) {
  std::exception_ptr unknown;
  std::vector<std::string> texts = ranks.gather(outcome_of(action, unknown));
  const std::string verdict = ranks.broadcast(ranks.rank() == 0 ? verdict_of(texts) : std::string());
  if (verdict.empty()) return texts;
  const size_t blank = verdict.find(' ');
  if (unknown && std::stoi(verdict.substr(0, blank)) == ranks.rank()) std::rethrow_exception(unknown);
  throw_encoded_error(verdict.substr(blank + 1));
}

std::string run_on_rank_0(Coordinator& ranks, const std::function<std::string()>& action) {
  std::exception_ptr unknown;
  const bool first = ranks.rank() == 0;
  const std::string text = ranks.broadcast(first ? outcome_of(action, unknown) : std::string());
  if (text.starts_with(kText)) return text.substr(1);
  if (unknown) std::rethrow_exception(unknown);
  throw_encoded_error(text);
}

}  // namespace hyperion
