// A Parquet file of which one column of text is read, page by page.
#pragma once

#include "data/arrow/arrow_plugin.h"

namespace hyperion::data {

void* open_parquet(const ArrowHost* host, uint64_t size);
bool choose_parquet_column(void* file, uint32_t column);
bool read_parquet_rows(void* file, uint64_t group, uint64_t first, uint64_t rows);
void close_parquet(void* file);

}  // namespace hyperion::data
