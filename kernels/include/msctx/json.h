// JSON between the core and Python: what the core reports is written with it, and what Python requests is read.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace msctx {

void quote(std::string& json, const std::string& text);
// "name":"value", and the same of a number, of true or false.
void member(std::string& json, const char* name, const std::string& value);
void number(std::string& json, const char* name, int64_t value);
void flag(std::string& json, const char* name, bool is_on);

// A value that Python's json.dumps(ensure_ascii=False) wrote.
struct Json {
  std::string text;                                   // of a string, a number, true or false; empty for null
  std::vector<std::pair<std::string, Json>> members;  // of an object or, with empty names, of a list

  // Throws where the text is no JSON.
  static Json of(const char* text);
  // The member of this name, or null.
  const Json& operator[](std::string_view name) const;
  const Json& at(size_t place) const { return members.at(place).second; }

  bool is_on() const { return text == "true"; }
  int64_t integer(int64_t if_null = 0) const;
  double number() const;  // 0 for null
};

}  // namespace msctx
