// Runs a fuzz target where there is no libFuzzer: seeds are mutated by a random generator with a fixed seed.
// Understands the three arguments of libFuzzer that our tests pass: -runs=N, -max_total_time=SECONDS,
// folders.
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "base/files.h"
#include "tests/fuzz/fuzz.h"

namespace {

std::string mutate(std::string input, const std::vector<std::string>& seeds, std::mt19937_64& random) {
  const auto below = [&](size_t bound) { return bound == 0 ? 0 : static_cast<size_t>(random() % bound); };
  for (size_t change = 0, changes = 1 + below(4); change < changes; ++change) {
    const size_t at = below(input.size() + 1), length = below(std::min<size_t>(input.size() - at, 16) + 1);
    const std::string& other = seeds[below(seeds.size())];
    switch (below(6)) {
      case 0:
        if (at < input.size()) input[at] = static_cast<char>(input[at] ^ (1 << below(8)));
        break;
      case 1:
        if (at < input.size()) input[at] = static_cast<char>(random());
        break;
      case 2:
        input.erase(at, length);
        break;
      case 3:
        input.insert(at, input.substr(below(input.size()), length));
        break;
      case 4:
        input.insert(at, other.substr(below(other.size()), below(64)));
        break;
      case 5:
        input.resize(at);
        break;
    }
  }
  return input;
}

}  // namespace

int main(int count, char** arguments) {
  uint64_t runs = UINT64_MAX;
  int64_t seconds = 1 << 30;
  std::vector<std::string> seeds = {""};
  for (int i = 1; i < count; ++i) {
    const std::string argument = arguments[i];
    if (argument.starts_with("-runs="))
      runs = std::stoull(argument.substr(6));
    else if (argument.starts_with("-max_total_time="))
      seconds = std::stoll(argument.substr(16));
    else if (!argument.starts_with("-"))
      for (const auto& file : std::filesystem::directory_iterator(argument))
        seeds.push_back(hyperion::read_file(file.path()));
  }
  std::mt19937_64 random(1);
  uint64_t run = 0;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
  for (; run < runs && std::chrono::steady_clock::now() < end; ++run) {
    const std::string input =
        run < seeds.size() ? seeds[run] : mutate(seeds[random() % seeds.size()], seeds, random);
    LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()), input.size());
  }
  std::printf("Done %llu runs\n", static_cast<unsigned long long>(run));
  return 0;
}
