#include "data/node_documents.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstring>
#include <fstream>
#include <memory>
#include <set>
#include <stdexcept>
#include <thread>

#include <catch2/catch.hpp>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "data/loader.h"
#include "tests/support/documents.h"
#include "tests/support/thread_ranks.h"

namespace hyperion::data {

using Catch::Contains;

namespace {

LoaderOptions node_options(const std::string& path, int64_t degree, int64_t rank,
                           std::shared_ptr<NodeDocuments> node = nullptr) {
  LoaderOptions options;
  options.sources = {{.path = path, .node = std::move(node)}};
  options.encode = test::encode_bytes;
  options.seq_len = 32;
  options.rows = 2;
  options.dp_degree = degree;
  options.dp_rank = rank;
  options.order.seed = 5;
  return options;
}

// For the threads of ranks, where Catch's assertions may not be used: the test throws it.
void require(bool good, const std::string& what) {
  if (!good) throw std::runtime_error(what);
}

// The next `batches` of both loaders, which are equal, and so is the state after each.
void require_same_batches(DataLoader& one, DataLoader& other, int batches) {
  for (int i = 0; i < batches; ++i) {
    const Batch a = *one.next(), b = *other.next();
    require(a.tokens == b.tokens && a.labels == b.labels && a.first_sequence == b.first_sequence &&
                places_of_row(a, 0).describe() == places_of_row(b, 0).describe(),
            "batch " + std::to_string(i) + " differs");
    require(one.state() == other.state(), "the state after batch " + std::to_string(i) + " differs");
  }
}

// A document of about `tokens` tokens for each name.
std::string long_documents(int documents, size_t tokens) {
  std::string lines;
  for (int i = 0; i < documents; ++i)
    lines += R"({"text": ")" + std::string(tokens, static_cast<char>('a' + i)) + "\"}\n";
  return lines;
}

// Two ranks in two processes.
class SocketRanks : public Coordinator {
 public:
  SocketRanks(int rank, int socket) : rank_(rank), socket_(socket) {}
  int rank() const override { return rank_; }
  int size() const override { return 2; }
  std::vector<std::string> gather(const std::string& text) override {
    std::vector<std::string> both = exchange(text);
    return rank_ == 0 ? both : std::vector<std::string>();
  }
  std::string broadcast(const std::string& text) override { return exchange(text).front(); }

 private:
  std::vector<std::string> exchange(const std::string& text) {
    std::array<char, 4096> out{}, in{};  // a size, and the bytes
    const uint64_t size = text.size();
    std::memcpy(out.data(), &size, sizeof size);
    text.copy(out.data() + sizeof size, out.size() - sizeof size);
    REQUIRE(::write(socket_, out.data(), out.size()) == static_cast<ssize_t>(out.size()));
    REQUIRE(::recv(socket_, in.data(), in.size(), MSG_WAITALL) == static_cast<ssize_t>(in.size()));
    uint64_t other_size = 0;
    std::memcpy(&other_size, in.data(), sizeof other_size);
    const std::string other(in.data() + sizeof other_size, other_size);
    return rank_ == 0 ? std::vector{text, other} : std::vector{other, text};
  }

  int rank_, socket_;
};

// A rank of a second host: what it sends and receives names that host for this one, and this one for that.
class OnOtherHost : public Coordinator {
 public:
  explicit OnOtherHost(Coordinator& inner) : inner_(inner) {
    std::ifstream("/proc/sys/kernel/random/boot_id") >> host_;
    other_ = host_;
    std::ranges::reverse(other_);
  }
  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  std::vector<std::string> gather(const std::string& text) override { return inner_.gather(swapped(text)); }
  std::string broadcast(const std::string& text) override { return swapped(inner_.broadcast(text)); }

 private:
  std::string swapped(std::string text) const {
    for (size_t at = 0; at < text.size(); ++at) {
      const bool here = text.compare(at, host_.size(), host_) == 0;
      if (!here && text.compare(at, other_.size(), other_) != 0) continue;
      text.replace(at, host_.size(), here ? other_ : host_);
      at += host_.size() - 1;
    }
    return text;
  }

  Coordinator& inner_;
  std::string host_, other_;
};

}  // namespace

TEST_CASE("ranks tokenise together with those of their own host alone") {
  const test::Corpus corpus;
  test::ThreadRanks::run(5, [&](Coordinator& ranks) {
    OnOtherHost other(ranks);
    const bool elsewhere = ranks.rank() >= 2;  // rank 0 is here
    std::shared_ptr<NodeDocuments> node =
        NodeDocuments::make(elsewhere ? static_cast<Coordinator&>(other) : ranks);
    require(node != nullptr, "that they tokenise together");
    DataLoader alone(node_options(corpus.path(), 5, ranks.rank()));
    DataLoader together(node_options(corpus.path(), 5, ranks.rank(), node));
    require(together.tokenising_ranks() == (elsewhere ? 3 : 2), "the number of ranks that tokenise together");
    require_same_batches(together, alone, 100);
  });
}

TEST_CASE("ranks of a node that tokenise together get the batches that each would make alone") {
  const test::Corpus corpus;
  for (const int size : {1, 2, 4}) {
    test::ThreadRanks::run(size, [&](Coordinator& ranks) {
      std::shared_ptr<NodeDocuments> node = NodeDocuments::make(ranks);
      DataLoader alone(node_options(corpus.path(), size, ranks.rank()));
      DataLoader together(node_options(corpus.path(), size, ranks.rank(), node));
      require((node != nullptr) == (size > 1), "whether they tokenise together");
      require(together.tokenising_ranks() == size, "the number of ranks that tokenise together");
      require_same_batches(together, alone, 100);
    });
  }
}

TEST_CASE("a rank tokenises its share of the documents and no other rank's") {
  test::TemporaryFolder folder;
  folder.write("a.jsonl", test::json_lines(60, "alpha"));
  std::array<std::set<std::string>, 2> texts;
  test::ThreadRanks::run(2, [&](Coordinator& ranks) {
    LoaderOptions options = node_options(folder.path(), 2, ranks.rank(), NodeDocuments::make(ranks));
    options.order.shuffle = false;
    std::set<std::string>& own = texts[static_cast<size_t>(ranks.rank())];
    options.encode = [&own](std::string_view text) {
      own.emplace(text);
      return test::encode_bytes(text);
    };
    DataLoader loader(options);
    for (int i = 0; i < 100; ++i) loader.next();
  });
  // Rank 0 has the documents with even numbers. Both open the first one, where the stream begins.
  CHECK(texts[0].size() == 30);
  CHECK(texts[1].size() == 31);
  for (const std::string& text : texts[1])
    CHECK((texts[0].contains(text) ? text.starts_with("alpha0 ") : true));
}

TEST_CASE("ranks of a node go to another place and another seed in the middle and read on together") {
  const test::Corpus corpus;
  test::ThreadRanks::run(4, [&](Coordinator& ranks) {
    DataLoader alone(node_options(corpus.path(), 4, ranks.rank()));
    DataLoader together(node_options(corpus.path(), 4, ranks.rank(), NodeDocuments::make(ranks)));
    require_same_batches(together, alone, 7);
    const LoaderState saved = alone.state();
    require_same_batches(together, alone, 5);
    test::wait_for_all(ranks);
    for (DataLoader* loader : {&alone, &together}) loader->load_state(saved);
    require_same_batches(together, alone, 30);
    test::wait_for_all(ranks);
    for (DataLoader* loader : {&alone, &together}) loader->reset(77);
    require_same_batches(together, alone, 30);
    test::wait_for_all(ranks);
    for (DataLoader* loader : {&alone, &together}) loader->reset();
    require_same_batches(together, alone, 10);
  });
}

TEST_CASE("documents larger than the memory that ranks share pass through it in pieces") {
  test::TemporaryFolder folder;
  folder.write("a.jsonl", long_documents(3, 5'000'000));  // 20 MB of tokens each
  test::ThreadRanks::run(2, [&](Coordinator& ranks) {
    const auto make = [&](std::shared_ptr<NodeDocuments> node) {
      LoaderOptions options = node_options(folder.path(), 2, ranks.rank(), std::move(node));
      options.seq_len = 500'000;
      options.rows = 1;
      options.prefetch = 1;
      return options;
    };
    DataLoader alone(make(nullptr)), together(make(NodeDocuments::make(ranks)));
    require_same_batches(together, alone, 20);
  });
}

TEST_CASE("a rank that ends early leaves the others all that they need for the batches it had") {
  const test::Corpus corpus;
  for (int turn = 0; turn < 20; ++turn) {
    test::ThreadRanks::run(3, [&](Coordinator& ranks) {
      DataLoader alone(node_options(corpus.path(), 3, ranks.rank()));
      DataLoader together(node_options(corpus.path(), 3, ranks.rank(), NodeDocuments::make(ranks)));
      if (ranks.rank() > 0) std::this_thread::sleep_for(std::chrono::milliseconds(3));
      require_same_batches(together, alone, turn);
    });
  }
}

TEST_CASE("bad data of a document that one rank tokenises ends every rank after the same batch") {
  test::TemporaryFolder folder;
  folder.write("a.jsonl", test::json_lines(30, "alpha") + "{\"text\": 7}\n");
  std::array<int, 3> batches{};
  std::array<std::string, 3> messages;
  test::ThreadRanks::run(3, [&](Coordinator& ranks) {
    LoaderOptions options = node_options(folder.path(), 3, ranks.rank(), NodeDocuments::make(ranks));
    options.order.shuffle = false;
    DataLoader loader(options);
    try {
      while (loader.next()) ++batches[static_cast<size_t>(ranks.rank())];
    } catch (const Error& error) {
      messages[static_cast<size_t>(ranks.rank())] = error.what();
    }
  });
  CHECK(batches[0] > 5);
  CHECK(batches[1] == batches[0]);
  CHECK(batches[2] == batches[0]);
  for (const std::string& message : messages) CHECK_THAT(message, Contains("a.jsonl:31"));
}

TEST_CASE(
    "skipped documents are the same alone and together, and too many end every rank after the same batch") {
  test::TemporaryFolder folder;
  const std::string bad = "{\"text\": 7}\n{\"texts\": \"a\"}\nno JSON\n",
                    none = "{\"text\": null}\n{\"text\": \"\"}\n";
  folder.write("a.jsonl", test::json_lines(250, "alpha") + bad + none + test::json_lines(150, "beta"));
  folder.write("b.jsonl.gz",
               test::gzip(test::json_lines(10, "gamma") + none + test::json_lines(200, "delta")));
  folder.write("c.jsonl", test::json_lines(3, "epsilon") + bad + bad + bad + test::json_lines(90, "zeta"));
  for (const bool shuffle : {true, false}) {
    std::array<int, 4>
        batches{};  // of three ranks together, and of a job of one rank that reads as much at once
    std::array<std::string, 4> messages;
    const auto read = [&](LoaderOptions options, size_t index) {
      options.order.shuffle = shuffle;
      options.order.skips_bad_documents = true;
      DataLoader loader(options);
      try {
        while (loader.next()) ++batches[index];
      } catch (const Error& error) {
        messages[index] = error.what();
      }
    };
    test::ThreadRanks::run(3, [&](Coordinator& ranks) {
      read(node_options(folder.path(), 3, ranks.rank(), NodeDocuments::make(ranks)),
           static_cast<size_t>(ranks.rank()));
    });
    LoaderOptions alone = node_options(folder.path(), 1, 0);
    alone.rows *= 3;
    read(alone, 3);
    CHECK(batches[3] > 20);
    for (const size_t rank : {0, 1, 2}) {
      CHECK(batches[rank] == batches[3]);
      CHECK(messages[rank] == "data-parallel rank " + std::to_string(rank) + ": " + messages[3]);
    }
    CHECK_THAT(messages[3], Contains("read so far cannot be used") &&
                                Contains("at most 1 % may be skipped (training.on_bad_document)"));
  }
}

TEST_CASE("a killed rank of the node is named by those that wait for its documents") {
  test::TemporaryFolder folder;
  folder.write("a.jsonl", long_documents(6, 2'000'000));  // two of them fill the memory that ranks share
  int sockets[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0);
  const auto options = [&](int rank, Coordinator& ranks) {
    LoaderOptions one = node_options(folder.path(), 2, rank, NodeDocuments::make(ranks));
    one.seq_len = 100'000;
    return one;
  };
  const pid_t child = ::fork();
  if (child == 0) {
    SocketRanks ranks(1, sockets[1]);
    DataLoader loader(options(1, ranks));
    loader.next();
    ::kill(::getpid(), SIGKILL);
  }
  SocketRanks ranks(0, sockets[0]);
  DataLoader loader(options(0, ranks));
  std::string message;
  try {
    for (int i = 0; i < 1000; ++i) loader.next();
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::kCommunication);
    message = error.what();
  }
  CHECK_THAT(message, Contains("rank 1 has ended"));
  ::waitpid(child, nullptr, 0);
  for (const int socket : sockets) ::close(socket);
}

TEST_CASE("token shards and one pass over text are read by each rank alone") {
  const test::Corpus corpus;
  test::ThreadRanks::run(2, [&](Coordinator& ranks) {
    LoaderOptions options = node_options(corpus.path(), 2, ranks.rank(), NodeDocuments::make(ranks));
    options.order.repeat = false;
    DataLoader loader(options);
    require(loader.tokenising_ranks() == 1, "they tokenise together");
    while (loader.next()) {
    }
  });
}

}  // namespace hyperion::data
