#include "trainer/metrics/tensorboard.h"

#include <cmath>

#include <catch2/catch.hpp>

#include "base/error.h"
#include "event_reader.h"
#include "tests/support/temporary_folder.h"

namespace hyperion::metrics {

// Check values of RFC 3720, appendix B.4.
TEST_CASE("crc32c equals the published check values") {
  CHECK(crc32c("123456789") == 0xE3069283u);
  CHECK(crc32c(std::string(32, '\0')) == 0x8A9136AAu);
  CHECK(crc32c(std::string(32, '\xFF')) == 0x62A8AB43u);
  CHECK(crc32c("") == 0u);
}

TEST_CASE("An event file holds its version and then every scalar and text") {
  test::TemporaryFolder folder;
  std::filesystem::path path;
  {
    EventWriter writer(folder.path() / "tb" / "now");
    path = writer.path();
    writer.scalar("loss_metrics/global_avg_loss", 4.25, 1, 1000.5);
    writer.scalar("throughput(tps)", 1e6, int64_t{1} << 40, 1001.5);
    writer.scalar("bad", std::nan(""), 3, 1002);
    writer.text("config", "a = 1", 0, 1003);
    writer.flush();
    CHECK(read_events(path).size() == 5);  // readable while the job runs
  }
  CHECK(path.filename().string().starts_with("events.out.tfevents."));
  const auto events = read_events(path);
  REQUIRE(events.size() == 5);
  CHECK(events[0].file_version == "brain.Event:2");
  CHECK(events[1].tag == "loss_metrics/global_avg_loss");
  CHECK(events[1].value == 4.25f);
  CHECK(events[1].step == 1);
  CHECK(events[1].wall_time == 1000.5);
  CHECK(events[2].step == int64_t{1} << 40);
  CHECK(std::isnan(events[3].value));
  CHECK(events[4].tag == "config/text_summary");
  CHECK(events[4].plugin == "text");
  CHECK(events[4].text == "a = 1");
}

TEST_CASE("Two writers of one process never share an event file") {
  test::TemporaryFolder folder;
  EventWriter first(folder.path()), second(folder.path());
  CHECK(first.path() != second.path());
}

TEST_CASE("An impossible TensorBoard folder is an error that names it") {
  CHECK_THROWS_WITH(EventWriter("/proc/none/tb"), Catch::Contains("/proc/none/tb"));
  CHECK_THROWS_WITH(EventWriter("/dev/null/tb"), Catch::Contains("/dev/null: is a device, not a folder"));
}

}  // namespace hyperion::metrics
