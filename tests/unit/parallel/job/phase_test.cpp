#include "parallel/job/phase.h"

#include <catch2/catch.hpp>

namespace hyperion::parallel {

TEST_CASE("phases nest and are restored") {
  set_phase("step 1");
  {
    PhaseGuard outer("step 1 forward");
    {
      PhaseGuard inner("step 1 forward layers.0");
      CHECK(current_phase() == "step 1 forward layers.0");
    }
    CHECK(current_phase() == "step 1 forward");
  }
  CHECK(current_phase() == "step 1");
  set_phase("");
  CHECK(current_phase().empty());
}

}  // namespace hyperion::parallel
