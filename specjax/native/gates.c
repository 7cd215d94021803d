// The activation of a gated MLP (Shazeer, arXiv:2002.05202), on all cores.
//
//   x [R, 2 n]   y [R, n]
//   y = g sigmoid(slope g + cubic g^3) u, of the first n of a row, g, and the
//   others, u
//
// SiLU has slope 1 and no cubic, GELU by tanh (Hendrycks and Gimpel,
// arXiv:1606.08415) sqrt(8 / pi) and 0.044715 of it.

#include <string.h>

#include "exponential.h"
#include "rows.h"

enum {
  PIECE = 1024,  // of a row, which a thread takes at once
  ALONE = 16,    // pieces that one thread is faster with
};

typedef struct {
  const float *x;
  float *y;
  int64_t n, pieces;  // of a row
  float slope, cubic;
} Gates;

// The next vector of a piece, or what is left of it, and zeros.
static inline Floats load(const float *x, int64_t left) {
  if (left >= LANES) return *(const Floats *)x;
  Floats some = {0};
  memcpy(&some, x, left * sizeof *x);
  return some;
}

static void gate_pieces(const void *job, int64_t from, int64_t to) {
  const Gates *p = job;
  for (int64_t piece = from; piece < to; piece++) {
    int64_t row = piece / p->pieces, begin = piece % p->pieces * PIECE;
    int64_t end = begin + PIECE < p->n ? begin + PIECE : p->n;
    const float *gates = p->x + row * 2 * p->n, *values = gates + p->n;
    for (int64_t i = begin; i < end; i += LANES) {
      int64_t left = end - i;
      Floats g = load(gates + i, left), curve = g * p->slope;
      if (p->cubic != 0) curve += p->cubic * g * g * g;  // Infinity * 0 is NaN.
      Ints below = curve < spread(0);
      Floats small = exponential(pick(below, curve, -curve));
      Floats part = pick(below, small, spread(1)) / (small + 1);
      Floats made = g * part * load(values + i, left);
      float *y = p->y + row * p->n + i;
      if (left >= LANES)
        *(Floats *)y = made;
      else
        memcpy(y, &made, left * sizeof *y);
    }
  }
}

EXPORTED XLA_FFI_Error *gates(XLA_FFI_CallFrame *frame) {
  if (told(frame)) return NULL;
  const XLA_FFI_Buffer *x = frame->args.args[0], *y = frame->rets.rets[0];
  const XLA_FFI_Buffer *curve = frame->args.args[1];
  const float *numbers = curve->data;
  if (x->rank != 2 || x->dtype != XLA_FFI_DataType_F32 || y->rank != 2 ||
      x->dims[0] != y->dims[0] || x->dims[1] != 2 * y->dims[1] ||
      curve->dtype != x->dtype || curve->rank != 1 || curve->dims[0] != 2)
    return refuse(frame, "x must be [R, 2 n] float32, and y [R, n]");
  int64_t n = y->dims[1], pieces = (n + PIECE - 1) / PIECE;
  Gates p = {x->data, y->data, n, pieces, numbers[0], numbers[1]};
  int64_t all_pieces = x->dims[0] * pieces;
  share(gate_pieces, &p, all_pieces, all_pieces <= ALONE ? all_pieces : 1);
  return NULL;
}
