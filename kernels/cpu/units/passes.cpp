// What runs over tensors beside algorithms, and the table of these.
#include "cpu/fingerprint.cpp"
#include "cpu/finish.cpp"
#include "cpu/statistics.cpp"
#include "cpu/table.cpp"
