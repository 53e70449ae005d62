#include "impl/model/data.h"

#include <algorithm>
#include <utility>

#include "impl/base/error.h"
#include "impl/base/sha256.h"
#include "impl/base/strict_json.h"
#include "impl/model/counter_random.h"
#include "impl/model/file_bytes.h"

namespace lamina {
namespace {

using Tokens = std::vector<std::int32_t>;

void check_sample_size(std::span<std::int32_t> tokens, std::span<std::int32_t> targets, std::int64_t sequence) {
  LAMINA_CHECK(std::ssize(tokens) == sequence && std::ssize(targets) == sequence,
               "room for {} tokens and {} targets, a sample has {}", tokens.size(), targets.size(), sequence);
}

// One long run of tokens; a sample is a window of it at a random place.
class Windows : public TokenSource {
 public:
  Windows(Tokens tokens, std::string hash, std::int64_t sequence, std::int64_t seed)
      : tokens_(std::move(tokens)), hash_(std::move(hash)), sequence_(sequence), key_(random_key(seed, "windows")) {}

  void sample(std::int64_t index, std::span<std::int32_t> tokens, std::span<std::int32_t> targets) const override {
    check_sample_size(tokens, targets, sequence_);
    const std::int64_t windows = std::ssize(tokens_) - sequence_;
    const std::int64_t begin = random_below(key_, static_cast<std::uint64_t>(index), windows);
    std::copy_n(tokens_.begin() + begin, sequence_, tokens.begin());
    std::copy_n(tokens_.begin() + begin + 1, sequence_, targets.begin());
  }
  std::string sha256() const override { return hash_; }

 private:
  Tokens tokens_;
  std::string hash_;
  std::int64_t sequence_;
  std::uint64_t key_;
};

// Samples as a file lists them, from the first again after the last.
class FixedSamples : public TokenSource {
 public:
  FixedSamples(Tokens tokens, Tokens targets, std::string hash, std::int64_t sequence)
      : tokens_(std::move(tokens)), targets_(std::move(targets)), hash_(std::move(hash)), sequence_(sequence) {}

  void sample(std::int64_t index, std::span<std::int32_t> tokens, std::span<std::int32_t> targets) const override {
    check_sample_size(tokens, targets, sequence_);
    const std::int64_t begin = index % (std::ssize(tokens_) / sequence_) * sequence_;
    std::copy_n(tokens_.begin() + begin, sequence_, tokens.begin());
    std::copy_n(targets_.begin() + begin, sequence_, targets.begin());
  }
  std::string sha256() const override { return hash_; }

 private:
  Tokens tokens_;
  Tokens targets_;
  std::string hash_;
  std::int64_t sequence_;
};

// Uniformly random tokens; the target is the next one.
class Synthetic : public TokenSource {
 public:
  Synthetic(std::int64_t seed, std::int64_t sequence, std::int64_t vocabulary)
      : seed_(seed), sequence_(sequence), vocabulary_(vocabulary), key_(random_key(seed, "synthetic")) {}

  void sample(std::int64_t index, std::span<std::int32_t> tokens, std::span<std::int32_t> targets) const override {
    check_sample_size(tokens, targets, sequence_);
    const std::uint64_t sample_key = random_bits(key_, static_cast<std::uint64_t>(index));
    const auto token_at = [&](std::int64_t position) {
      return static_cast<std::int32_t>(random_below(sample_key, static_cast<std::uint64_t>(position), vocabulary_));
    };
    for (std::int64_t position = 0; position < sequence_; ++position) {
      tokens[static_cast<std::size_t>(position)] = token_at(position);
      targets[static_cast<std::size_t>(position)] = token_at(position + 1);
    }
  }
  std::string sha256() const override {
    return lamina::sha256(fmt::format("synthetic seed={} sequence={} vocabulary={}", seed_, sequence_, vocabulary_));
  }

 private:
  std::int64_t seed_;
  std::int64_t sequence_;
  std::int64_t vocabulary_;
  std::uint64_t key_;
};

[[noreturn]] void refuse(const std::string& path, const std::string& reason) {
  throw UsageError(fmt::format("data {}: {}", path, reason));
}

std::unique_ptr<TokenSource> windows_of(const std::string& path, Tokens tokens, std::string hash, std::int64_t sequence,
                                        std::int64_t vocabulary, std::int64_t seed) {
  if (std::ssize(tokens) <= sequence) {
    refuse(path, fmt::format("{} tokens; a sequence of {} needs at least {}", tokens.size(), sequence, sequence + 1));
  }
  const auto largest = std::max_element(tokens.begin(), tokens.end());
  if (*largest >= vocabulary) {
    refuse(path, fmt::format("token {} at position {} is outside the vocabulary of {}", *largest,
                             largest - tokens.begin(), vocabulary));
  }
  return std::make_unique<Windows>(std::move(tokens), std::move(hash), sequence, seed);
}

Tokens tokens_of_16_bits(const std::string& path, const std::vector<unsigned char>& bytes) {
  if (bytes.size() % 2 != 0) {
    refuse(path, fmt::format("{} bytes are not a whole number of 16-bit tokens", bytes.size()));
  }
  Tokens tokens(bytes.size() / 2);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = bytes[2 * i] | bytes[2 * i + 1] << 8;
  }
  return tokens;
}

// The rows of one key of the JSON form, one after the other.
Tokens rows_of(const std::string& path, const Json& document, const char* key, std::int64_t sequence,
               std::int64_t lowest, std::int64_t vocabulary) {
  const auto found = document.find(key);
  if (found == document.end() || !found->is_array() || found->empty()) {
    refuse(path, fmt::format("\"{}\" must be a list of at least one row", key));
  }
  Tokens tokens;
  for (std::size_t row = 0; row < found->size(); ++row) {
    const Json& values = (*found)[row];
    if (!values.is_array() || std::ssize(values) != sequence) {
      refuse(path, fmt::format("{}[{}] must be a list of {} integers{}", key, row, sequence,
                               values.is_array() ? fmt::format(", not of {}", values.size()) : ""));
    }
    for (std::size_t column = 0; column < values.size(); ++column) {
      const Json& value = values[column];
      // Compared in double: an unsigned number beyond 63 bits must not come out negative.
      const bool fits = value.is_number_integer() && value.get<double>() >= static_cast<double>(lowest) &&
                        value.get<double>() < static_cast<double>(vocabulary);
      if (!fits) {
        refuse(path, fmt::format("{}[{}][{}] is {}; it must be an integer from {} to {}", key, row, column,
                                 value.dump(), lowest, vocabulary - 1));
      }
      tokens.push_back(value.get<std::int32_t>());
    }
  }
  return tokens;
}

std::unique_ptr<TokenSource> samples_of_json(const std::string& path, const std::vector<unsigned char>& bytes,
                                             std::int64_t sequence, std::int64_t vocabulary) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const Json document = parse_strict_json(text, "data " + path);
  if (!document.is_object()) {
    refuse(path, "must be an object with \"tokens\" and \"targets\"");
  }
  for (const auto& [key, value] : document.items()) {
    if (key != "tokens" && key != "targets") {
      refuse(path, fmt::format("unknown key \"{}\"; it may have \"tokens\" and \"targets\"", key));
    }
  }
  Tokens tokens = rows_of(path, document, "tokens", sequence, 0, vocabulary);
  Tokens targets = rows_of(path, document, "targets", sequence, -1, vocabulary);
  if (tokens.size() != targets.size()) {
    refuse(path, fmt::format("{} rows of tokens but {} rows of targets", document["tokens"].size(),
                             document["targets"].size()));
  }
  return std::make_unique<FixedSamples>(std::move(tokens), std::move(targets), sha256(bytes), sequence);
}

}  // namespace

std::unique_ptr<TokenSource> open_token_source(const DataConfig& config, std::int64_t sequence, std::int64_t vocabulary,
                                               std::int64_t seed) {
  LAMINA_CHECK(sequence >= 1 && vocabulary >= 1, "sequence {} and vocabulary {}", sequence, vocabulary);
  if (config.kind == DataConfig::Kind::synthetic) {
    return std::make_unique<Synthetic>(config.seed, sequence, vocabulary);
  }
  const std::vector<unsigned char> bytes = read_file(config.path, "data");
  switch (config.kind) {
    case DataConfig::Kind::text_file:
      return windows_of(config.path, Tokens(bytes.begin(), bytes.end()), sha256(bytes), sequence, vocabulary, seed);
    case DataConfig::Kind::token_file:
      return windows_of(config.path, tokens_of_16_bits(config.path, bytes), sha256(bytes), sequence, vocabulary, seed);
    default:
      return samples_of_json(config.path, bytes, sequence, vocabulary);
  }
}

}  // namespace lamina
