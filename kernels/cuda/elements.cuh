// The dtypes as kernels meet them: bits in memory, and the type in which they are summed. Compiled by nvcc, by NVRTC (which has no
// headers of CUDA at hand, so no __half) and by a C++ compiler that emulates a GPU.
#pragma once

namespace msctx {

template <class To, class From>
__device__ __forceinline__ To bits_as(From value) {
  static_assert(sizeof(To) == sizeof(From), "the same bits");
  To found;
  memcpy(&found, &value, sizeof found);
  return found;
}

__device__ __forceinline__ float multiply_add(float a, float b, float c) { return fmaf(a, b, c); }
__device__ __forceinline__ double multiply_add(double a, double b, double c) { return fma(a, b, c); }

// IEEE's binary16. A GPU has an instruction for each of the two conversions: the only lines here that the emulation does not run.
__device__ __forceinline__ float from_binary16(unsigned short bits) {
#if defined(__CUDA_ARCH__)
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
#else
  const float size = bits_as<float>((bits & 0x7fffu) << 13) * 0x1p112f;  // exact, subnormal ones too
  const unsigned magnitude = (bits & 0x7c00u) == 0x7c00u ? bits_as<unsigned>(size) | 0x7f800000u : bits_as<unsigned>(size);
  return bits_as<float>(magnitude | (bits & 0x8000u) << 16);
#endif
}
__device__ __forceinline__ unsigned short to_binary16(float value) {
#if defined(__CUDA_ARCH__)
  unsigned short bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
#else
  const unsigned bits = bits_as<unsigned>(value), sign = bits >> 16 & 0x8000u, size = bits & 0x7fffffffu;
  if (size > 0x7f800000u) return 0x7fff;
  if (size >= 0x477ff000u) return (unsigned short)(sign | 0x7c00u);  // 65520 and more round to Inf
  if (size >= 0x38800000u) return (unsigned short)(sign | (size - 0x38000000u + 0xfffu + (size >> 13 & 1u)) >> 13);
  const float steps = bits_as<float>(size) * 0x1p24f + 0x1p23f;  // below 2^-14: a whole number of 2^-24, rounded by the addition
  return (unsigned short)(sign | (bits_as<unsigned>(steps) - 0x4b000000u));
#endif
}

// Read as they lie in memory, summed as Sum.
struct f32 {
  using Sum = float;
  float value;
  __device__ __forceinline__ Sum get() const { return value; }
  __device__ __forceinline__ void set(Sum sum) { value = sum; }
};

struct f64 {
  using Sum = double;
  double value;
  __device__ __forceinline__ Sum get() const { return value; }
  __device__ __forceinline__ void set(Sum sum) { value = sum; }
};

struct f16 {
  using Sum = float;
  unsigned short bits;
  __device__ __forceinline__ Sum get() const { return from_binary16(bits); }
  __device__ __forceinline__ void set(Sum sum) { bits = to_binary16(sum); }
};

// The upper half of a float32.
struct bf16 {
  using Sum = float;
  unsigned short bits;
  __device__ __forceinline__ Sum get() const { return bits_as<float>((unsigned)bits << 16); }
  __device__ __forceinline__ void set(Sum sum) {
    const unsigned whole = bits_as<unsigned>(sum);
    const bool is_nan = (whole & 0x7fffffffu) > 0x7f800000u;
    bits = is_nan ? (unsigned short)0x7fff : (unsigned short)((whole + 0x7fffu + (whole >> 16 & 1u)) >> 16);
  }
};

}  // namespace msctx
