#include "data/arrow/plugin/parquet_columns.h"
#include "data/arrow/plugin/stream_batches.h"

namespace hyperion::data {

extern "C" __attribute__((visibility("default"))) const ArrowPlugin* hyperion_arrow_plugin() {
  static const ArrowPlugin plugin = {
      .version = ArrowPlugin::kVersion,
      .struct_size = sizeof(ArrowPlugin),
      .parquet_open = open_parquet,
      .parquet_choose = choose_parquet_column,
      .parquet_read = read_parquet_rows,
      .parquet_close = close_parquet,
      .stream_open = open_stream,
      .stream_read = read_stream_batch,
      .stream_close = close_stream,
  };
  return &plugin;
}

}  // namespace hyperion::data
