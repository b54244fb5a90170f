#include <new>
#include <string>

#include "data/arrow/plugin/column_reader.h"

namespace hyperion::data {
namespace {

ColumnReader& reader_of(void* file) {
  return *static_cast<ColumnReader*>(file);
}

// Calls `body` and turns what it throws into a message; false then.
template <typename Body>
bool guarded(const ArrowHost& host, const ColumnReader* reader, const Body& body) noexcept {
  const auto fail = [&](const std::string& message, bool too_large) {
    host.fail(host.context, message.data(), message.size(), too_large);
    return false;
  };
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return fail("there is not enough memory", /*too_large=*/true);
  } catch (const std::exception& error) {
    return fail(error.what(), reader != nullptr && reader->needs_too_much());
  } catch (...) {
    return fail("an unknown error", /*too_large=*/false);
  }
}

void* open(const ArrowHost* host, ColumnFormat format, uint64_t size) {
  std::unique_ptr<ColumnReader> reader;
  const bool made = guarded(*host, nullptr, [&] {
    reader = format == ColumnFormat::kParquet ? make_parquet_reader(*host) : make_stream_reader(*host);
    return true;
  });
  const bool opened = made && guarded(*host, reader.get(), [&] {
                        reader->open(size);
                        return true;
                      });
  return opened ? reader.release() : nullptr;
}

bool choose(void* file, uint32_t column) {
  ColumnReader& reader = reader_of(file);
  const bool chosen = guarded(reader.host(), &reader, [&] {
    reader.choose(column);
    return true;
  });
  reader.drop();
  return chosen;
}

bool read(void* file, const ColumnRows* rows) {
  ColumnReader& reader = reader_of(file);
  const bool done = guarded(reader.host(), &reader, [&] { return reader.read(*rows); });
  if (!done) reader.drop();
  return done;
}

void close(void* file) {
  delete &reader_of(file);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const ArrowPlugin* hyperion_arrow_plugin() {
  static const ArrowPlugin plugin = {.version = ArrowPlugin::kVersion,
                                     .struct_size = sizeof(ArrowPlugin),
                                     .open = open,
                                     .choose = choose,
                                     .read = read,
                                     .close = close};
  return &plugin;
}

}  // namespace hyperion::data
