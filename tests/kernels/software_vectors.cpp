// For test_software_vectors.py: what a few of the vectors in software move where, and how large weights as operands are.
#include "choice.h"
#include "lowered.h"

#include <cstdio>
#include <new>

using namespace msctx;
using namespace msctx::MSCTX_ISA;

static void print(const char* name, __m512 v) {
  std::printf("%s", name);
  for (int i = 0; i < 16; i++) std::printf(" %d", int(v[i]));
  std::printf("\n");
}
static void print(const char* name, __m512d v) { print(name, _mm512_castpd_ps(v)); }

// Where memory holds something else beforehand.
static size_t size_of_weights(const ConvProblem& p, Op op) {
  using L = Lowered<Graded>;
  alignas(L) static unsigned char room[sizeof(L)];
  std::memset(room, 0x5a, sizeof room);
  return Weights<Graded>(*new (room) L(p, op), nullptr).size();
}

int main() {
  const __m512 a{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, b = a + 16.0f;
  const __m512d a2 = _mm512_castps_pd(a), b2 = _mm512_castps_pd(b);
  print("unpacklo_ps", _mm512_unpacklo_ps(a, b));
  print("unpackhi_ps", _mm512_unpackhi_ps(a, b));
  print("unpacklo_pd", _mm512_unpacklo_pd(a2, b2));
  print("unpackhi_pd", _mm512_unpackhi_pd(a2, b2));
  print("shuffle_ps", _mm512_maskz_shuffle_ps(0xffff, a, b, 0b00'10'11'01));
  print("shuffle_f32x4", _mm512_shuffle_f32x4(a, b, 0b11'01'10'00));
  const __m512i index = _mm512_setr_epi32(3, 10, 17, 24, 31, 6, 13, 20, 27, 2, 9, 16, 23, 30, 5, 12);
  print("permutex2var_ps", _mm512_permutex2var_ps(a, index, b));

  ConvProblem p{};
  p.n = p.groups = 1, p.c = 3, p.k = 4;
  for (int i = 0; i < 3; i++) p.in[i] = p.out[i] = p.window[i] = p.stride[i] = p.dilation[i] = 1;
  for (int i = 1; i < 3; i++) p.in[i] = p.out[i] = 6, p.window[i] = 5, p.pad[i] = 2;
  std::printf("sizes %zu %zu\n", size_of_weights(p, Op::forward), size_of_weights(p, Op::backward_data));
}
