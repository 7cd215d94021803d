// Sums of rows, x [R, n] float32 -> y [R].
//
// The order of the additions is that of a row, whatever is beside it: XLA adds
// eight rows or more in another order than one.

#include "rows.h"

EXPORTED XLA_FFI_Error *sums(XLA_FFI_CallFrame *frame) {
  if (told(frame)) return NULL;
  const XLA_FFI_Buffer *x = frame->args.args[0], *y = frame->rets.rets[0];
  if (x->rank != 2 || x->dtype != XLA_FFI_DataType_F32)
    return refuse(frame, "x must be [R, n] float32");
  int64_t n = x->dims[1], i;
  const float *from = x->data;
  float *to = y->data;
  for (int64_t row = 0; row < x->dims[0]; row++, from += n) {
    Floats lanes = {0};
    for (i = 0; i + LANES <= n; i += LANES) lanes += *(const Floats *)(from + i);
    float sum = 0;
    for (int lane = 0; lane < LANES; lane++) sum += lanes[lane];
    for (; i < n; i++) sum += from[i];
    to[row] = sum;
  }
  return NULL;
}
