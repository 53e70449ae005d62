// Initial weights and safetensors files.
#include "impl/model/weights.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cmath>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "impl/base/error.h"

namespace lamina {
namespace {

const ModelShape kShape = {.layers = 8, .hidden = 48, .heads = 2, .sequence = 16, .vocabulary = 97};

std::vector<double> initialized(Unit unit, std::int64_t seed) {
  std::vector<double> values(static_cast<std::size_t>(unit_parameters(kShape, unit)), 5);
  initialize_range(kShape, unit, seed, 0, std::ssize(values), values.data());
  return values;
}

TEST(InitializeTest, DeviationsAsInGpt2) {
  for (const Unit unit : {embedding_unit(), layer_unit(3), head_unit()}) {
    const std::vector<double> values = initialized(unit, 1);
    for (const TensorLayout& tensor : unit_layout(kShape, unit)) {
      double sum = 0;
      double squares = 0;
      for (std::int64_t i = tensor.offset; i < tensor.offset + tensor.elements; ++i) {
        sum += values[static_cast<std::size_t>(i)];
        squares += std::pow(values[static_cast<std::size_t>(i)], 2);
      }
      const double n = static_cast<double>(tensor.elements);
      if (tensor.shape.size() == 1) {
        EXPECT_EQ(sum, tensor.name.ends_with(".weight") ? n : 0) << tensor.name;
        continue;
      }
      const double deviation = tensor.name.find("c_proj") != std::string::npos ? 0.02 / std::sqrt(16.0) : 0.02;
      EXPECT_NEAR(std::sqrt(squares / n) / deviation, 1, 4 / std::sqrt(2 * n)) << tensor.name;  // four sigma
      EXPECT_NEAR(sum / n / deviation, 0, 4 / std::sqrt(n)) << tensor.name;
    }
  }
}

TEST(InitializeTest, SeedsNamesAndPlacesDiffer) {
  EXPECT_EQ(initialized(layer_unit(0), 1), initialized(layer_unit(0), 1));
  EXPECT_NE(initialized(layer_unit(0), 1), initialized(layer_unit(0), 2));
  EXPECT_NE(initialized(layer_unit(0), 1), initialized(layer_unit(1), 1));
  const std::vector<double> values = initialized(embedding_unit(), 1);
  EXPECT_NE(std::vector<double>(values.begin(), values.begin() + 48),
            std::vector<double>(values.begin() + 48, values.begin() + 96));
}

// Ranges that cut tensors, with padding at the end, are pieces of the whole; float is the double rounded.
TEST(InitializeTest, RangesArePiecesOfTheWhole) {
  const std::vector<double> whole = initialized(layer_unit(2), 1);
  for (const std::int64_t parts : {2, 5, 7}) {
    const std::int64_t shard = (std::ssize(whole) + parts - 1) / parts;
    std::vector<double> joined(static_cast<std::size_t>(shard * parts), 5);
    std::vector<float> narrow(joined.size(), 5);
    for (std::int64_t part = 0; part < parts; ++part) {
      initialize_range(kShape, layer_unit(2), 1, part * shard, (part + 1) * shard, joined.data() + part * shard);
      initialize_range(kShape, layer_unit(2), 1, part * shard, (part + 1) * shard, narrow.data() + part * shard);
    }
    for (std::size_t i = 0; i < joined.size(); ++i) {
      ASSERT_EQ(joined[i], i < whole.size() ? whole[i] : 0) << i;
      ASSERT_EQ(narrow[i], static_cast<float>(joined[i])) << i;
    }
  }
}

class SafetensorsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(::testing::TempDir()) /
              (std::string("lamina_weights_") + ::testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string write(const std::string& header, const std::string& data) {
    const std::uint64_t length = header.size();
    std::string bytes(sizeof length, '\0');
    std::memcpy(bytes.data(), &length, sizeof length);
    return write_bytes(bytes + header + data);
  }
  std::string write_bytes(const std::string& bytes) {
    const std::string path = folder_ / "w.safetensors";
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }
  void expect_refused(const std::string& path, const std::string& reason) {
    try {
      read_safetensors(path);
      ADD_FAILURE() << "accepted; should say: " << reason;
    } catch (const UsageError& error) {
      const std::string message = error.what();
      EXPECT_NE(message.find(reason), std::string::npos) << message;
      EXPECT_NE(message.find(path), std::string::npos) << message;
    }
  }

  std::filesystem::path folder_;
};

TEST_F(SafetensorsTest, WrittenAndReadBack) {
  const std::string path = folder_ / "w.safetensors";
  const std::vector<NamedTensor> tensors{{.name = "b", .shape = {2, 1}, .values = {0.1, -1e-300}},
                                         {.name = "a", .shape = {}, .values = {3}}};
  write_safetensors(path, tensors, 8);
  auto read = read_safetensors(path);
  ASSERT_EQ(read.size(), 2U);
  EXPECT_EQ(read["b"].shape, (std::vector<std::int64_t>{2, 1}));
  EXPECT_EQ(read["b"].values, (std::vector<double>{0.1, -1e-300}));
  EXPECT_EQ(read["a"].values, (std::vector<double>{3}));
  write_safetensors(path, tensors, 4);  // over the one before
  read = read_safetensors(path);
  EXPECT_EQ(read["b"].values, (std::vector<double>{static_cast<double>(0.1F), -0.0}));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1);  // no temporary file left
}

TEST_F(SafetensorsTest, WhatCannotBeWrittenIsAnErrorAndLeavesNothing) {
  EXPECT_THROW(write_safetensors(folder_ / "none" / "w.safetensors", {}, 8), Error);
  const std::filesystem::path taken = folder_ / "taken";
  std::filesystem::create_directories(taken / "inside");
  EXPECT_THROW(write_safetensors(taken, {{.name = "a", .shape = {1}, .values = {1}}}, 8), Error);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1);
}

void write_beyond_the_limit(const std::string& path) {
  std::signal(SIGXFSZ, SIG_IGN);
  const rlimit limit{1000, 1000};  // writes beyond fail as on a full disk
  setrlimit(RLIMIT_FSIZE, &limit);
  try {
    write_safetensors(path, {{.name = "a", .shape = {5000}, .values = std::vector<double>(5000, 1)}}, 8);
  } catch (const Error&) {
    std::_Exit(3);
  }
  std::_Exit(0);
}

TEST_F(SafetensorsTest, AFullDiskLeavesWhatWasThere) {
  const std::string path = folder_ / "w.safetensors";
  write_safetensors(path, {{.name = "a", .shape = {1}, .values = {7}}}, 8);
  EXPECT_EXIT(write_beyond_the_limit(path), testing::ExitedWithCode(3), "");
  EXPECT_EQ(read_safetensors(path)["a"].values, std::vector{7.0});
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1);  // no temporary file left
}

TEST_F(SafetensorsTest, HalfPrecisionIsRead) {
  // 1, -2, 65504, the smallest denormal, infinity in F16; 1, -2 in BF16.
  const std::string data("\x00\x3c\x00\xc0\xff\x7b\x01\x00\x00\x7c\x80\x3f\x00\xc0", 14);
  const std::string path = write(R"({"h": {"dtype": "F16", "shape": [5], "data_offsets": [0, 10]},
                                     "b": {"dtype": "BF16", "shape": [2], "data_offsets": [10, 14]},
                                     "__metadata__": {"format": "pt"}})",
                                 data);
  auto read = read_safetensors(path);
  EXPECT_EQ(read["h"].values, (std::vector<double>{1, -2, 65504, std::ldexp(1, -24), HUGE_VAL}));
  EXPECT_EQ(read["b"].values, (std::vector<double>{1, -2}));
  EXPECT_EQ(read.size(), 2U);
}

TEST_F(SafetensorsTest, BrokenFilesAreRefused) {
  const std::string eight(8, '\0');
  expect_refused((folder_ / "none").string(), "No such file");
  expect_refused(write_bytes("abc"), "too short");
  expect_refused(write_bytes(std::string("\xff\xff\xff\xff\xff\xff\xff\xff{}", 10)), "truncated");
  expect_refused(write("{", ""), "its header: parse error");
  expect_refused(write("[]", ""), "not a JSON object");
  expect_refused(write(R"({"a": 1})", ""), "no \"dtype\"");
  expect_refused(write(R"({"a": {"dtype": "I64", "shape": [1], "data_offsets": [0, 8]}})", eight), "type \"I64\"");
  expect_refused(write(R"({"a": {"dtype": "F64", "data_offsets": [0, 8]}})", eight), "no list \"shape\"");
  expect_refused(write(R"({"a": {"dtype": "F64", "shape": [-1], "data_offsets": [0, 8]}})", eight), "not a size");
  expect_refused(write(R"({"a": {"dtype": "F64", "shape": [1.5], "data_offsets": [0, 8]}})", eight), "not a size");
  expect_refused(write(R"({"a": {"dtype": "F64", "shape": [4611686018427387904, 8], "data_offsets": [0, 8]}})", eight),
                 "larger than any file");
  expect_refused(write(R"({"a": {"dtype": "F64", "shape": [2], "data_offsets": [0, 16]}})", eight),
                 "leave the 8 bytes");
  expect_refused(write(R"({"a": {"dtype": "F64", "shape": [1], "data_offsets": [8, 0]}})", eight), "leave the 8 bytes");
  expect_refused(write(R"({"a": {"dtype": "F64", "shape": [2], "data_offsets": [0, 8]}})", eight), "needs 16");
  expect_refused(write(R"({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
                           "b": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}})",
                       eight),
                 "inside the tensor");
  expect_refused(write(R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}})", eight), "after a gap");
  expect_refused(write(R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}})", eight),
                 "4 bytes of data follow");
  expect_refused(write(R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
                           "a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}})",
                       eight),
                 "its header: a is given twice");
}

TEST(UnitTensorsTest, ThereAndBack) {
  const std::vector<double> values = initialized(layer_unit(1), 1);
  std::map<std::string, NamedTensor> tensors;
  for (const NamedTensor& tensor : tensors_from_unit(kShape, layer_unit(1), values)) {
    tensors[tensor.name] = tensor;
  }
  EXPECT_EQ(tensors.at("transformer.h.1.mlp.c_fc.weight").shape, (std::vector<std::int64_t>{192, 48}));
  EXPECT_EQ(unit_from_tensors(kShape, layer_unit(1), tensors), values);
  EXPECT_THROW(unit_from_tensors(kShape, layer_unit(2), tensors), UsageError);  // missing
  tensors["transformer.h.1.ln_2.bias"].shape = {2, 24};
  EXPECT_THROW(unit_from_tensors(kShape, layer_unit(1), tensors), UsageError);
}

}  // namespace
}  // namespace lamina
