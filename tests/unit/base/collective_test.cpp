#include "base/collective.h"

#include <array>
#include <new>
#include <stdexcept>

#include <catch2/catch.hpp>

#include "base/files.h"
#include "tests/support/thread_ranks.h"

namespace hyperion {
namespace {

using test::ThreadRanks;

// What one rank's call ended with.
struct Seen {
  char type = '-';  // 'e': Error, 'i': IncompatibleCheckpoint, 'p': PermissionDenied, 'x': another exception
  ExitCode code = ExitCode::kOk;
  std::string text;
  bool operator==(const Seen&) const = default;
};

Seen seen_of(const std::function<void()>& call) {
  try {
    call();
    return {};
  } catch (const IncompatibleCheckpoint& error) {
    return {'i', error.code(), error.what()};
  } catch (const PermissionDenied& error) {
    return {'p', error.code(), error.what()};
  } catch (const Error& error) {
    return {'e', error.code(), error.what()};
  } catch (const std::exception& error) {
    return {'x', ExitCode::kOk, error.what()};
  }
}

// collectively() on three ranks, each with its own action.
std::array<Seen, 3> run(const std::array<std::function<void()>, 3>& actions) {
  std::array<Seen, 3> seen;
  ThreadRanks::run(3, [&](Coordinator& ranks) {
    const auto rank = static_cast<size_t>(ranks.rank());
    seen[rank] = seen_of([&] { collectively(ranks, actions[rank]); });
    test::wait_for_all(ranks);  // the exchanges still match
  });
  return seen;
}

void succeed() {}
void damage() {
  throw_data("step-3 is damaged\nin two lines");
}
void incompatible() {
  throw_incompatible("4 layers there, 8 here");
}

void check_all(const std::array<Seen, 3>& seen, const Seen& expected) {
  for (const Seen& one : seen) {
    CHECK(one.type == expected.type);
    CHECK(one.code == expected.code);
    CHECK(one.text == expected.text);
  }
}

}  // namespace

TEST_CASE("rank 0 learns what every rank returned and all ranks what rank 0 did") {
  ThreadRanks::run(3, [&](Coordinator& ranks) {
    const std::vector<std::string> texts = collectively(
        ranks, [&] { return ranks.rank() == 1 ? std::string() : "of rank " + std::to_string(ranks.rank()); });
    const std::vector<std::string> expected = {"of rank 0", "", "of rank 2"};
    if (texts != (ranks.rank() == 0 ? expected : std::vector<std::string>())) throw_bug("other texts");
    if (from_rank_0(ranks, [&] { return "of rank " + std::to_string(ranks.rank()); }) != "of rank 0")
      throw_bug("another text");
  });
}

TEST_CASE("the texts of all ranks reach no rank but rank 0") {
  // Adds up the bytes that this rank receives.
  class Receiving : public Coordinator {
   public:
    explicit Receiving(Coordinator& inner) : inner_(inner) {}
    int rank() const override { return inner_.rank(); }
    int size() const override { return inner_.size(); }
    std::vector<std::string> gather(const std::string& text) override {
      std::vector<std::string> texts = inner_.gather(text);
      for (const std::string& one : texts) bytes += one.size();
      return texts;
    }
    std::string broadcast(const std::string& text) override {
      std::string said = inner_.broadcast(text);
      bytes += said.size();
      return said;
    }
    size_t bytes = 0;

   private:
    Coordinator& inner_;
  };
  std::array<size_t, 16> received{};
  std::array<Seen, 16> seen;
  ThreadRanks::run(16, [&](Coordinator& inner) {
    Receiving ranks(inner);
    const auto rank = static_cast<size_t>(ranks.rank());
    collectively(ranks, [] { return std::string(1000, 'x'); });
    from_rank_0(ranks, [] { return std::string(10, 'y'); });
    received[rank] = ranks.bytes;
    seen[rank] = seen_of([&] {
      collectively(ranks, [&] {
        if (rank % 2 == 1) damage();
      });
    });
  });
  CHECK(received[0] > 16'000);
  for (size_t rank = 1; rank < 16; ++rank) CHECK(received[rank] < 20);
  for (const Seen& one : seen)
    CHECK(one == Seen{'e', ExitCode::kBadData, "rank 1: step-3 is damaged\nin two lines (and 7 more ranks)"});
}

TEST_CASE("an error of one rank is thrown by every rank with its code, its type and its text") {
  check_all(run({succeed, damage, succeed}),
            {'e', ExitCode::kBadData, "rank 1: step-3 is damaged\nin two lines"});
  check_all(run({succeed, incompatible, succeed}), {'i', ExitCode::kBadData, "4 layers there, 8 here"});
  check_all(run({succeed, succeed, [] { throw PermissionDenied(ExitCode::kBadData, "may not be read"); }}),
            {'p', ExitCode::kBadData, "may not be read"});
  check_all(run({[] { throw_config("unknown key"); }, succeed, succeed}),
            {'e', ExitCode::kUsage, "unknown key"});
}

TEST_CASE("a failure that no older checkpoint mends goes before damage and the lowest rank before others") {
  check_all(run({damage, succeed, incompatible}), {'i', ExitCode::kBadData, "4 layers there, 8 here"});
  check_all(run({succeed, damage, [] { throw_data("step-3 is short"); }}),
            {'e', ExitCode::kBadData, "rank 1: step-3 is damaged\nin two lines (and 1 more rank)"});
  check_all(run({[] { throw Error(ExitCode::kSaveFailed, "disk full"); },
                 [] { throw Error(ExitCode::kNonFinite, "weight (1 number)"); }, succeed}),
            {'e', ExitCode::kNonFinite, "rank 1: weight (1 number)"});
}

TEST_CASE("a message that names its rank is not given the rank again") {
  check_all(run({succeed, succeed, [] { throw Error(ExitCode::kSaveFailed, "rank 2: disk full"); }}),
            {'e', ExitCode::kSaveFailed, "rank 2: disk full"});
}

TEST_CASE("a rank that runs out of memory throws that itself and the others say so") {
  const auto seen = run({succeed, [] { throw std::bad_alloc(); }, succeed});
  CHECK(seen[1].type == 'x');
  CHECK(seen[0].code == ExitCode::kResources);
  CHECK_THAT(seen[0].text, Catch::StartsWith("rank 1: memory ran out"));
  CHECK(seen[2] == seen[0]);
}

TEST_CASE("a GPU that fails is its own rank's error and a lost peer for the others") {
  const auto fail = [] { throw std::runtime_error("CUDA error: uncorrectable ECC error encountered"); };
  const auto seen = run({succeed, fail, succeed});
  CHECK(seen[1].type == 'x');  // libtorch's, which ends the rank with kHardware
  for (const size_t rank : {0u, 2u}) {
    CHECK(seen[rank].code == ExitCode::kCommunication);
    CHECK_THAT(seen[rank].text, Catch::Contains("rank 1: the GPU failed (CUDA error 214"));
  }
}

TEST_CASE("an error of rank 0 is thrown by every rank as it is") {
  std::array<Seen, 3> seen;
  std::array<int, 3> calls{};
  ThreadRanks::run(3, [&](Coordinator& ranks) {
    const auto rank = static_cast<size_t>(ranks.rank());
    seen[rank] = seen_of([&] {
      from_rank_0(ranks, [&] {
        ++calls[rank];
        incompatible();
      });
    });
  });
  check_all(seen, {'i', ExitCode::kBadData, "4 layers there, 8 here"});
  CHECK(calls == std::array<int, 3>{1, 0, 0});
}

TEST_CASE("a rank that lost the others does not wait for them") {
  SoloCoordinator alone;
  const Seen seen = seen_of([&] { collectively(alone, [] { throw_comm("rank 1 is gone"); }); });
  CHECK(seen == Seen{'e', ExitCode::kCommunication, "rank 1 is gone"});
}

TEST_CASE("only errors that something else may mend are damage") {
  CHECK(is_damage(Error(ExitCode::kBadData, "")));
  CHECK(is_damage(Error(ExitCode::kSaveFailed, "")));
  CHECK_FALSE(is_damage(Error(ExitCode::kUsage, "")));
  CHECK_FALSE(is_damage(IncompatibleCheckpoint("")));
  CHECK_FALSE(is_damage(PermissionDenied(ExitCode::kBadData, "")));
}

}  // namespace hyperion
