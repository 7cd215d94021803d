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

// Not in line, so that every piece of a row is rounded alike.
static __attribute__((noinline)) void gate(const Gates *p, const float *gates,
                                           const float *values, float *y,
                                           int64_t n) {
  for (int64_t i = 0; i < n; i += LANES) {
    Floats g = *(const Floats *)(gates + i), u = *(const Floats *)(values + i);
    Floats curve = g * p->slope;
    if (p->cubic != 0) curve += p->cubic * g * g * g;  // Infinity times 0 is NaN.
    Ints below = curve < all(0);
    Floats small = exponential(pick(below, curve, -curve));
    Floats part = pick(below, small, all(1)) / (small + 1);
    *(Floats *)(y + i) = g * part * u;
  }
}

static void gate_pieces(const void *job, int64_t from, int64_t to) {
  const Gates *p = job;
  for (int64_t piece = from; piece < to; piece++) {
    int64_t row = piece / p->pieces, begin = piece % p->pieces * PIECE;
    int64_t count = p->n - begin < PIECE ? p->n - begin : PIECE;
    int64_t whole = count / LANES * LANES, rest = count - whole;
    const float *gates = p->x + row * 2 * p->n + begin, *values = gates + p->n;
    float *y = p->y + row * p->n + begin;
    gate(p, gates, values, y, whole);
    if (!rest) continue;
    float last[3][LANES] = {0};
    memcpy(last[0], gates + whole, rest * sizeof *y);
    memcpy(last[1], values + whole, rest * sizeof *y);
    gate(p, last[0], last[1], last[2], LANES);
    memcpy(y + whole, last[2], rest * sizeof *y);
  }
}

EXPORTED XLA_FFI_Error *gates(XLA_FFI_CallFrame *frame) {
  if (told(frame)) return NULL;
  const XLA_FFI_Buffer *x = frame->args.args[0], *y = frame->rets.rets[0];
  const float *numbers = ((XLA_FFI_Buffer *)frame->args.args[1])->data;
  if (x->rank != 2 || x->dtype != XLA_FFI_DataType_F32 || y->rank != 2 ||
      x->dims[1] != 2 * y->dims[1])
    return refuse(frame, "x must be [R, 2 n] float32, and y [R, n]");
  int64_t n = y->dims[1], pieces = (n + PIECE - 1) / PIECE;
  Gates p = {x->data, y->data, n, pieces, numbers[0], numbers[1]};
  int64_t all_pieces = x->dims[0] * pieces;
  share(gate_pieces, &p, all_pieces, all_pieces <= ALONE ? all_pieces : 1);
  return NULL;
}
