// What every reader of JSON files refuses, and how: with one line that starts with the document's name.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>

#include "impl/base/error.h"

namespace lamina {

inline void expect_one_line(const std::function<void()>& read, const std::string& name, const std::string& part) {
  try {
    read();
    FAIL() << "accepted; expected a refusal with '" << part << "'";
  } catch (const UsageError& error) {
    const std::string message = error.what();
    EXPECT_EQ(message.rfind(name, 0), 0u) << message;
    EXPECT_NE(message.find(part), std::string::npos) << message << "; expected " << part;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  }
}

// Texts that are no document, whatever is to stand in it.
inline void expect_strict_reading(const std::function<void(const std::filesystem::path&)>& read) {
  struct Bad {
    const char* content;
    const char* part;
  };
  const std::filesystem::path file = "refused.json";
  for (const Bad& bad : {Bad{"", "is empty"}, Bad{"{\"name\": \"a\",}", "parse error"}, Bad{"{} {}", "parse error"},
                         Bad{"\xef\xbb\xbf{\"name\": \"a\"}", "byte-order mark"},
                         Bad{"{\"name\": \"a\", \"name\": \"b\"}", "name is given twice"},
                         Bad{"{\"rows\": [{\"id\": 1, \"id\": 2}]}", "rows[0].id is given twice"},
                         Bad{"{\"links\": {\"node\": 1, \"node\": 2}}", "links.node is given twice"}}) {
    std::ofstream(file, std::ios::binary) << bad.content;
    expect_one_line([&] { read(file); }, file.string(), bad.part);
  }
  std::filesystem::remove(file);
  expect_one_line([&] { read("nowhere.json"); }, "nowhere.json", "cannot be read");
}

}  // namespace lamina
