// Sixteen columns of a matrix for a few rows: what all products are made of.
//
// Columns are read once, from front to back, and serve up to six or eight rows
// while they are in registers. Every sum adds its inputs in their order,
// whatever the number of rows, so a row has the same bits alone and beside
// others.

#ifndef SPECJAX_ROWS_H
#define SPECJAX_ROWS_H

#include <stdbool.h>
#include <stdint.h>

#include "team.h"
#include "xla/ffi/api/c_api.h"

#if defined(__AVX512F__)
#define NATIVE_LANES 16
#elif defined(__AVX__)
#define NATIVE_LANES 8
#else
#define NATIVE_LANES 4
#endif
#ifndef LANES  // Tests compile other widths, too.
#define LANES NATIVE_LANES
#endif

enum {
  COLUMNS = 16,  // that are read together
  PARTS = COLUMNS / LANES,
  MOST = LANES < 16 ? 6 : 8,  // rows that columns in registers serve
};

// Keeps a vector in its register: compilers would read it again for every row.
#if LANES > NATIVE_LANES
#define HOLD(vector)
#elif defined(__AVX512F__)
#define HOLD(vector) __asm__("" : "+v"(vector))
#elif defined(__x86_64__)
#define HOLD(vector) __asm__("" : "+x"(vector))
#elif defined(__aarch64__)
#define HOLD(vector) __asm__("" : "+w"(vector))
#else
#define HOLD(vector)
#endif

#define VECTOR(type) \
  __attribute__((vector_size(sizeof(type) * LANES), aligned(1)))
typedef float Floats VECTOR(float);
typedef uint32_t Words VECTOR(uint32_t);
typedef int32_t Ints VECTOR(int32_t);
typedef uint16_t Halves VECTOR(uint16_t);

typedef struct {
  int64_t row_of_x, row_of_w, row_of_y;  // elements from one to the next
  int64_t ahead;                         // elements of w to what is fetched
} Strides;

// y [rows, 16] = x [rows, from .. to] times w [from .. to, 16], or what is in y
// and that, where `more`.
typedef void Rows(const Strides *, const float *x, const char *w, float *y,
                  int64_t from, int64_t to, bool more);

// x in every lane. Compilers leave out that nothing is taken off, and not that
// nothing is added, which changes -0.
static inline Floats spread(float x) { return x - (Floats){0}; }

static inline Floats from_float(const float *w) { return *(const Floats *)w; }

static inline Floats from_bfloat16(const uint16_t *w) {
  Words wide = __builtin_convertvector(*(const Halves *)w, Words) << 16;
  return (Floats)wide;
}

#define ROWS(count, type, load)                                               \
  static void load##_##count(const Strides *s, const float *x,                \
                             const char *columns, float *y, int64_t from,     \
                             int64_t to, bool more) {                         \
    const type *w = (const type *)columns;                                    \
    int64_t stride = s->row_of_w;                                             \
    Floats sums[count][PARTS] = {0};                                          \
    if (more)                                                                 \
      _Pragma("GCC unroll 8") for (int r = 0; r < count; r++)                 \
          _Pragma("GCC unroll 4") for (int c = 0; c < PARTS; c++)             \
              sums[r][c] = *(Floats *)(y + r * s->row_of_y + c * LANES);      \
    for (int64_t i = from; i < to; i++) {                                     \
      Floats weights[PARTS];                                                  \
      __builtin_prefetch(w + i * stride + s->ahead);                          \
      _Pragma("GCC unroll 4") for (int c = 0; c < PARTS; c++) {               \
        weights[c] = load(w + i * stride + c * LANES);                        \
        HOLD(weights[c]);                                                     \
      }                                                                       \
      _Pragma("GCC unroll 8") for (int r = 0; r < count; r++)                 \
          _Pragma("GCC unroll 4") for (int c = 0; c < PARTS; c++)             \
              sums[r][c] += x[r * s->row_of_x + i] * weights[c];              \
    }                                                                         \
    _Pragma("GCC unroll 8") for (int r = 0; r < count; r++)                   \
        _Pragma("GCC unroll 4") for (int c = 0; c < PARTS; c++)               \
            *(Floats *)(y + r * s->row_of_y + c * LANES) = sums[r][c];        \
  }

// By their number, less one.
#define ALL_ROWS(type, load)                                        \
  ROWS(1, type, load)                                               \
  ROWS(2, type, load)                                               \
  ROWS(3, type, load)                                               \
  ROWS(4, type, load)                                               \
  ROWS(5, type, load)                                               \
  ROWS(6, type, load)                                               \
  ROWS(7, type, load)                                               \
  ROWS(8, type, load)                                               \
  static Rows *const load##_rows[] = {load##_1, load##_2, load##_3, \
                                      load##_4, load##_5, load##_6, \
                                      load##_7, load##_8};

// Whether a row is of zeros. So are its products: callers give such rows where
// there is no token, and they are left out.
static inline bool is_zero(const float *x, int64_t count) {
  for (int64_t i = 0; i < count; i++)
    if (x[i] != 0) return false;
  return true;
}

static inline XLA_FFI_Error *refuse(XLA_FFI_CallFrame *frame,
                                    const char *message) {
  XLA_FFI_Error_Create_Args args = {XLA_FFI_Error_Create_Args_STRUCT_SIZE, NULL,
                                    message,
                                    XLA_FFI_Error_Code_INVALID_ARGUMENT};
  return frame->api->XLA_FFI_Error_Create(&args);
}

// Whether XLA only asks what this was compiled for; it is told.
static inline bool told(XLA_FFI_CallFrame *frame) {
  for (XLA_FFI_Extension_Base *e = frame->extension_start; e; e = e->next)
    if (e->type == XLA_FFI_Extension_Metadata) {
      XLA_FFI_Metadata *facts = ((XLA_FFI_Metadata_Extension *)e)->metadata;
      facts->api_version.major_version = XLA_FFI_API_MAJOR;
      facts->api_version.minor_version = XLA_FFI_API_MINOR;
      return true;
    }
  return false;
}

#endif
