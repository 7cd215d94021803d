// RMSNorm of rows (Zhang and Sennrich, arXiv:1910.07467), or LayerNorm.
//
//   x [R, n] float32   scale [n] float32 or none   y [R, n]
//   y = (x - mean) / sqrt(variance + epsilon) * (more + scale)
//
// RMSNorm takes no mean off. Sums are those of a row, whatever is beside it: XLA
// adds eight rows or more in another order than one.

#include <math.h>

#include "rows.h"

static float sum(const float *x, int64_t n, float mean, bool square) {
  Floats lanes = {0};
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES) {
    Floats next = *(const Floats *)(x + i) - mean;
    lanes += square ? next * next : next;
  }
  float found = 0;
  for (int lane = 0; lane < LANES; lane++) found += lanes[lane];
  for (; i < n; i++) found += square ? (x[i] - mean) * (x[i] - mean) : x[i] - mean;
  return found;
}

EXPORTED XLA_FFI_Error *norms(XLA_FFI_CallFrame *frame) {
  if (told(frame)) return NULL;
  XLA_FFI_Buffer **args = (XLA_FFI_Buffer **)frame->args.args;
  const XLA_FFI_Buffer *x = args[0], *scale = args[1], *y = frame->rets.rets[0];
  const float *numbers = args[2]->data;  // epsilon, more, whether to centre
  if (x->rank != 2 || x->dtype != XLA_FFI_DataType_F32 ||
      scale->dtype != x->dtype || scale->rank != 1 ||
      (scale->dims[0] && scale->dims[0] != x->dims[1]))
    return refuse(frame, "x must be [R, n] float32, and scale [n] or [0]");
  int64_t n = x->dims[1];
  const float *from = x->data, *scales = scale->dims[0] ? scale->data : NULL;
  float *to = y->data;
  for (int64_t row = 0; row < x->dims[0]; row++, from += n, to += n) {
    float mean = numbers[2] ? sum(from, n, 0, false) / n : 0;
    float factor = 1 / sqrtf(sum(from, n, mean, true) / n + numbers[0]);
    for (int64_t i = 0; i < n; i++) {
      float one = (from[i] - mean) * factor;
      to[i] = scales ? one * (numbers[1] + scales[i]) : one;
    }
  }
  return NULL;
}
