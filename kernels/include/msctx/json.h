// JSON for Python to read: what the log of choices and the tuning results are written with.
#pragma once

#include <string>

namespace msctx {

void quote(std::string& json, const std::string& text);
// "name":"value",
void member(std::string& json, const char* name, const std::string& value);

}  // namespace msctx
