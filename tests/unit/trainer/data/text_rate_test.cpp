#include "trainer/data/text_rate.h"

#include <catch2/catch.hpp>

namespace hyperion::trainer {

using Catch::Matchers::Contains;

TEST_CASE("Text that one thread cannot tokenise for all GPUs is worth a warning with both rates") {
  CHECK(TextRate{3e6, 7e3, 8, 1}.suffices());
  CHECK(TextRate{3e6, 3e5, 8, 1}.suffices());  // 2.4 of 3 million: the last that can be depended on
  const TextRate rate = {3.1e6, 7e3, 1024, 1};
  CHECK_FALSE(rate.suffices());
  CHECK(rate.needed() == 7168000);
  CHECK_THAT(rate.describe(), Contains("one thread on each rank, for all 1,024 ranks") &&
                                  Contains("at most 3,100,000 tokens/s") &&
                                  Contains("about 7,168,000 tokens/s") && Contains("hyperion tokenize"));
}

TEST_CASE("The threads of a node that tokenise together feed as many times the GPUs as they are") {
  const TextRate enough = {3.1e6, 7e3, 1024, 8};
  CHECK(enough.suffices());
  CHECK_THAT(enough.describe(),
             Contains("the 8 threads of each node") &&
                 Contains("up to 24,800,000 tokens/s, of which about 7,168,000 are needed") &&
                 !Contains("hyperion tokenize"));
  const TextRate rate = {3.1e6, 7e3, 16384, 8};
  CHECK_FALSE(rate.suffices());
  CHECK_THAT(rate.describe(), Contains("the 8 threads of each node") &&
                                  Contains("at most 24,800,000 tokens/s") &&
                                  Contains("about 114,688,000 tokens/s"));
}

}  // namespace hyperion::trainer
