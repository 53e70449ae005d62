// Token sources: what they deliver, and what they refuse.
#include "impl/model/data.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "impl/base/error.h"
#include "impl/base/sha256.h"

namespace lamina {
namespace {

using Kind = DataConfig::Kind;

class DataTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(::testing::TempDir()) /
              (std::string("lamina_data_") + ::testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string write(const std::string& name, const std::string& bytes) {
    const std::string path = folder_ / name;
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }

  std::filesystem::path folder_;
};

struct Sample {
  std::vector<std::int32_t> tokens, targets;
  bool operator==(const Sample&) const = default;
};

Sample sample_of(const TokenSource& source, std::int64_t sequence, std::int64_t index) {
  Sample sample{.tokens = std::vector<std::int32_t>(static_cast<std::size_t>(sequence)),
                .targets = std::vector<std::int32_t>(static_cast<std::size_t>(sequence))};
  source.sample(index, sample.tokens, sample.targets);
  return sample;
}

void expect_refused(const DataConfig& config, std::int64_t sequence, std::int64_t vocabulary,
                    const std::string& reason) {
  try {
    open_token_source(config, sequence, vocabulary, 1);
    ADD_FAILURE() << "accepted; should say: " << reason;
  } catch (const UsageError& error) {
    const std::string message = error.what();
    EXPECT_NE(message.find(reason), std::string::npos) << message;
    EXPECT_NE(message.find(config.path), std::string::npos) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  }
}

TEST_F(DataTest, TextIsBytesAndTargetsAreTheNextOnes) {
  const std::string text = "To be, or not to be: that is the question.";
  const std::string path = write("a.txt", text);
  const auto source = open_token_source({.kind = Kind::text_file, .path = path}, 5, 256, 1);
  EXPECT_EQ(source->sha256(), sha256(text));
  std::set<std::int32_t> first_tokens;
  for (std::int64_t index = 0; index < 200; ++index) {
    const Sample sample = sample_of(*source, 5, index);
    std::string read(sample.tokens.begin(), sample.tokens.end());
    read.push_back(static_cast<char>(sample.targets.back()));
    EXPECT_NE(text.find(read), std::string::npos) << read;
    EXPECT_TRUE(std::equal(sample.tokens.begin() + 1, sample.tokens.end(), sample.targets.begin()));
    first_tokens.insert(sample.tokens[0]);
  }
  EXPECT_GT(first_tokens.size(), 10U);  // windows begin all over the text
  EXPECT_EQ(sample_of(*source, 5, 7),
            sample_of(*open_token_source({.kind = Kind::text_file, .path = path}, 5, 256, 1), 5, 7));
  EXPECT_NE(sample_of(*source, 5, 7),
            sample_of(*open_token_source({.kind = Kind::text_file, .path = path}, 5, 256, 2), 5, 7));
}

TEST_F(DataTest, TheOnlyWindowThereIs) {
  const auto source = open_token_source({.kind = Kind::text_file, .path = write("a.txt", "abcd")}, 3, 256, 1);
  EXPECT_EQ(sample_of(*source, 3, 12), (Sample{{'a', 'b', 'c'}, {'b', 'c', 'd'}}));
}

TEST_F(DataTest, TokenFilesAreLittleEndian) {
  const std::string bytes("\x01\x00\x00\x01\xff\xff", 6);  // 1, 256, 65535
  const std::string path = write("a.bin", bytes);
  const auto source = open_token_source({.kind = Kind::token_file, .path = path}, 2, 65536, 1);
  EXPECT_EQ(sample_of(*source, 2, 0), (Sample{{1, 256}, {256, 65535}}));
  EXPECT_EQ(source->sha256(), sha256(bytes));
}

TEST_F(DataTest, JsonRowsInOrderAndAround) {
  const std::string path = write("a.json", R"({"tokens": [[1, 2], [3, 0]], "targets": [[2, -1], [0, 3]]})");
  const auto source = open_token_source({.kind = Kind::json_file, .path = path}, 2, 4, 1);
  EXPECT_EQ(sample_of(*source, 2, 0), (Sample{{1, 2}, {2, -1}}));
  EXPECT_EQ(sample_of(*source, 2, 1), (Sample{{3, 0}, {0, 3}}));
  EXPECT_EQ(sample_of(*source, 2, 4), sample_of(*source, 2, 0));
}

TEST_F(DataTest, SyntheticTokensAreInsideTheVocabularyAndFollowTheSeed) {
  const auto source = open_token_source({.kind = Kind::synthetic, .path = "", .seed = 1}, 40, 7, 9);
  std::set<std::int32_t> seen;
  for (std::int64_t index = 0; index < 20; ++index) {
    const Sample sample = sample_of(*source, 40, index);
    seen.insert(sample.tokens.begin(), sample.tokens.end());
    EXPECT_TRUE(std::equal(sample.tokens.begin() + 1, sample.tokens.end(), sample.targets.begin()));
  }
  EXPECT_EQ(seen, (std::set<std::int32_t>{0, 1, 2, 3, 4, 5, 6}));
  EXPECT_NE(sample_of(*source, 40, 0), sample_of(*source, 40, 1));
  const auto other = open_token_source({.kind = Kind::synthetic, .path = "", .seed = 2}, 40, 7, 9);
  EXPECT_NE(sample_of(*source, 40, 0), sample_of(*other, 40, 0));
  EXPECT_NE(source->sha256(), other->sha256());
}

TEST_F(DataTest, WhatCannotBeReadIsRefused) {
  expect_refused({.kind = Kind::text_file, .path = (folder_ / "none.txt").string()}, 3, 256, "No such file");
  expect_refused({.kind = Kind::text_file, .path = folder_.string()}, 3, 256, "directory");
  expect_refused({.kind = Kind::text_file, .path = write("empty", "")}, 3, 256,
                 "0 tokens; a sequence of 3 needs at least 4");
  expect_refused({.kind = Kind::text_file, .path = write("short", "abc")}, 3, 256, "3 tokens");
  expect_refused({.kind = Kind::text_file, .path = write("high", "abcz")}, 3, 100, "token 122 at position 3");
  expect_refused({.kind = Kind::token_file, .path = write("odd", "abc")}, 1, 65536, "3 bytes are not a whole number");
}

TEST_F(DataTest, JsonThatIsNotItsFormIsRefused) {
  const auto refused = [&](const std::string& text, const std::string& reason) {
    expect_refused({.kind = Kind::json_file, .path = write("a.json", text)}, 2, 4, reason);
  };
  refused("", "is empty");
  refused("{\"tokens\": [[1, 2]],}", "at tokens: parse error");
  refused("[]", "must be an object");
  refused(R"({"tokens": [[1, 2]]})", "\"targets\" must be a list");
  refused(R"({"tokens": [], "targets": []})", "at least one row");
  refused(R"({"tokens": [[1, 2]], "tokens": [[3, 0]], "targets": [[1, 2]]})", "tokens is given twice");
  refused("\xef\xbb\xbf{\"tokens\": [[1, 2]], \"targets\": [[1, 2]]}", "byte-order mark");
  refused(R"({"tokens": [[1, 2]], "targets": [[1, 2]], "extra": 1})", "unknown key \"extra\"");
  refused(R"({"tokens": [[1, 2, 3]], "targets": [[1, 2]]})", "tokens[0] must be a list of 2 integers, not of 3");
  refused(R"({"tokens": [[1, 2], [1, 2]], "targets": [[1, 2]]})", "2 rows of tokens but 1");
  refused(R"({"tokens": [[1, 4]], "targets": [[1, 2]]})", "tokens[0][1] is 4; it must be an integer from 0 to 3");
  refused(R"({"tokens": [[1, -1]], "targets": [[1, 2]]})", "tokens[0][1] is -1");
  refused(R"({"tokens": [[1, 2]], "targets": [[1, -2]]})", "targets[0][1] is -2; it must be an integer from -1 to 3");
  refused(R"({"tokens": [[1, 2.5]], "targets": [[1, 2]]})", "tokens[0][1] is 2.5");
  refused(R"({"tokens": [["1", 2]], "targets": [[1, 2]]})", "tokens[0][0] is \"1\"");
  refused(R"({"tokens": [[1, 18446744073709551615]], "targets": [[1, 2]]})", "tokens[0][1] is 18446744073709551615");
}

// The examples of FIPS 180-4, and lengths around the end of a block.
TEST(Sha256Test, KnownDigests) {
  EXPECT_EQ(sha256(std::string_view("")), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256(std::string_view("abc")), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256(std::string_view("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(sha256(std::string(1000000, 'a')), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  EXPECT_EQ(sha256(std::string(55, 'a')), "9f4390f8d30c2dd92ec9f095b65e2b9ae9b0a925a5258e241c9f1e910f734318");
  EXPECT_EQ(sha256(std::string(64, 'a')), "ffe054fe7ae0cb6dc65c3af9b61d5209f439851db43d0ba5997337df154668eb");
}

}  // namespace
}  // namespace lamina
