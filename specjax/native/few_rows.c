// Rows times a weight in blocks of sixteen columns, on all cores of a CPU.
//
//   x [R, in] float32   w [C, in, 16] float32 or bfloat16   y [R, C * 16]
//
// Each block is read once; for more rows than registers hold, a part of it is
// read again from the innermost cache, and for more than a chunk the weight is.

#include <string.h>

#include "rows.h"

enum {
  CHUNK = 256,       // rows whose x stays in a cache
  SHARE = 64,        // inputs of a block that more rows take in turns
  AHEAD = 64,        // inputs that a block is fetched before it is needed
  GRAB = 64 * 1024,  // bytes of w that a thread takes at once, or more
  ALONE = 64 * 1024, // products that one thread is faster with
};

ALL_ROWS(float, from_float)
ALL_ROWS(uint16_t, from_bfloat16)

// Rows that columns in registers serve together.
typedef struct {
  int64_t first, count;
} Turn;

typedef struct {
  const float *x;
  const char *w;
  float *y;
  Rows *const *rows;
  Strides strides;
  int64_t inputs;
  int64_t bytes;  // of a block
  int64_t count;  // of the turns
  Turn turns[CHUNK];
} Product;

static void multiply_blocks(const void *job, int64_t from, int64_t to) {
  const Product *p = job;
  int64_t step = p->count == 1 ? p->inputs : SHARE;
  for (int64_t block = from; block < to; block++)
    for (int64_t begin = 0; begin < p->inputs; begin += step) {
      int64_t end = begin + step < p->inputs ? begin + step : p->inputs;
      for (const Turn *t = p->turns; t < p->turns + p->count; t++)
        p->rows[t->count - 1](
            &p->strides, p->x + t->first * p->inputs, p->w + block * p->bytes,
            p->y + t->first * p->strides.row_of_y + block * COLUMNS, begin, end,
            begin > 0);
    }
}

// Takes rows in turns as even as can be, and none of zeros.
static void take(Product *p, int64_t rows) {
  p->count = 0;
  for (int64_t row = 0, end; row < rows; row = end + 1) {
    for (end = row; end < rows; end++)
      if (is_zero(p->x + end * p->inputs, p->inputs)) {
        int64_t size = p->strides.row_of_y;
        memset(p->y + end * size, 0, size * sizeof *p->y);
        break;
      }
    for (int64_t left = (end - row + MOST - 1) / MOST; left; left--) {
      int64_t count = (end - row + left - 1) / left;
      p->turns[p->count++] = (Turn){row, count};
      row += count;
    }
  }
}

EXPORTED XLA_FFI_Error *few_rows(XLA_FFI_CallFrame *frame) {
  if (told(frame)) return NULL;
  const XLA_FFI_Buffer *x = frame->args.args[0], *w = frame->args.args[1];
  const XLA_FFI_Buffer *y = frame->rets.rets[0];
  if (x->rank != 2 || w->rank != 3 || w->dims[1] != x->dims[1] ||
      w->dims[2] != COLUMNS || x->dtype != XLA_FFI_DataType_F32)
    return refuse(frame, "x must be [R, in] float32 and w [C, in, 16]");
  int64_t inputs = x->dims[1], blocks = w->dims[0], size = 4;
  Product product = {.w = w->data,
                     .rows = from_float_rows,
                     .strides = {inputs, COLUMNS, blocks * COLUMNS,
                                 AHEAD * COLUMNS},
                     .inputs = inputs};
  if (w->dtype == XLA_FFI_DataType_BF16) {
    size = 2;
    product.rows = from_bfloat16_rows;
  } else if (w->dtype != XLA_FFI_DataType_F32) {
    return refuse(frame, "w must be float32 or bfloat16");
  }
  product.bytes = inputs * COLUMNS * size;
  int64_t rows = x->dims[0], products = rows * inputs * blocks * COLUMNS;
  int64_t grab = products <= ALONE ? blocks : 1 + GRAB / (product.bytes + 1);
  for (int64_t row = 0, taken; row < rows; row += taken) {
    int64_t left = rows - row, chunks = (left + CHUNK - 1) / CHUNK;
    taken = (left + chunks - 1) / chunks;
    product.x = (const float *)x->data + row * inputs;
    product.y = (float *)y->data + row * product.strides.row_of_y;
    take(&product, taken);
    if (product.count) share(multiply_blocks, &product, blocks, grab);
  }
  return NULL;
}
