// Small helpers that the tests of checkpoint/format share.
#pragma once

#include <filesystem>
#include <span>
#include <string>

#include <catch2/catch.hpp>

#include "base/error.h"
#include "base/files.h"
#include "tests/support/error_of.h"

namespace hyperion::checkpoint {

using namespace std::string_literals;

inline std::filesystem::path golden(const std::string& name) {
  return std::filesystem::path(HYPERION_SOURCE_DIR) / "tests/goldens/dcp" / name;
}

inline std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

// The message of the Error(kBadData) that f() must end in.
template <typename F>
std::string refusal(F f) {
  return error_of(ExitCode::kBadData, f);
}

// True when f() returns, false when it ends in Error(kBadData); nothing else may happen.
template <typename F>
bool is_accepted(F f) {
  try {
    f();
    return true;
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::kBadData);
    return false;
  }
}

// Pickles that run a command when Python loads them: what they name, and their bytes.
struct MaliciousPickle {
  std::string name, bytes;
};
inline std::vector<MaliciousPickle> malicious_pickles(const std::filesystem::path& canary) {
  const std::string command = "touch " + canary.string();
  const auto text = [](const std::string& value) {
    return "X"s + static_cast<char>(value.size()) + "\0\0\0"s + value;
  };
  return {
      {"os.system",
       "\x80\x02"
       "cos\nsystem\n" +
           text(command) + "\x85R."},
      {"posix.system",
       "\x80\x02"
       "cposix\nsystem\n" +
           text(command) + "\x85R."},
      {"builtins.eval", "\x80\x04" + text("builtins") + text("eval") + "\x93" +
                            text("open('" + canary.string() + "','w')") + "\x85R."},
      {"__builtin__.exec",
       "\x80\x02"
       "c__builtin__\nexec\n" +
           text("open('" + canary.string() + "','w')") + "\x85R."},
      {"subprocess.Popen",
       "\x80\x02"
       "csubprocess\nPopen\n" +
           text(command) + "\x85\x81."},
      {"torch.load",
       "\x80\x02"
       "ctorch\nload\n" +
           text(canary.string()) + "\x85R."},
      {"torch._utils._rebuild_parameter",
       "\x80\x02"
       "ctorch._utils\n_rebuild_parameter\n)R."},
      {"torch.distributed.checkpoint.metadata.os.system",
       "\x80\x04" + text("torch.distributed.checkpoint.metadata") + text("os.system") + "\x93" +
           text(command) + "\x85R."},
  };
}

}  // namespace hyperion::checkpoint
