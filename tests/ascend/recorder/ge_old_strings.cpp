// The one function of GE that is called with the strings of the ABI before C++11: compiled with _GLIBCXX_USE_CXX11_ABI=0.

#include <string>

namespace ge {
std::string GEGetErrorMsg() { return "the recorder compiles no graphs"; }
}  // namespace ge
