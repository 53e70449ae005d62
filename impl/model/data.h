// Where tokens come from. A sample depends on the source, the seed and its index, never on rank or split.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace lamina {

// Samples of `sequence` tokens and as many targets (the next token; -1: not counted).
class TokenSource {
 public:
  virtual ~TokenSource() = default;
  // Writes sample `index` (any index from 0; sources with fixed samples wrap around).
  virtual void sample(std::int64_t index, std::span<std::int32_t> tokens, std::span<std::int32_t> targets) const = 0;
  virtual std::string sha256() const = 0;  // of the file's bytes, or of the synthetic source's description
};

struct DataConfig {
  enum class Kind : std::uint8_t { text_file, token_file, json_file, synthetic } kind = Kind::synthetic;
  std::string path;       // of the file kinds
  std::int64_t seed = 1;  // of synthetic data
};

// text_file: bytes are tokens (vocabulary must be at least 256 or every byte below it). token_file: little-endian
// 16-bit tokens (nanoGPT's .bin). json_file: {"tokens": [[…]], "targets": [[…]]}, samples in file order, wrapping
// around. Windows of text and token files begin at a position drawn from (seed, index). Throws UsageError with file
// and reason: missing, too short for the sequence, a token outside the vocabulary, rows of the wrong length.
std::unique_ptr<TokenSource> open_token_source(const DataConfig& config, std::int64_t sequence, std::int64_t vocabulary,
                                               std::int64_t seed);

}  // namespace lamina
