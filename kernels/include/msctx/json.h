// JSON for Python to read: what the log of choices and the tuning results are written with.
#pragma once

#include <cstdint>
#include <string>

namespace msctx {

void quote(std::string& json, const std::string& text);
// "name":"value", and the same of a number, of true or false.
void member(std::string& json, const char* name, const std::string& value);
void number(std::string& json, const char* name, int64_t value);
void flag(std::string& json, const char* name, bool is_on);

}  // namespace msctx
