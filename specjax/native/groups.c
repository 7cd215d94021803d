// Rows times a weight of few bits with a scale and an offset for each group of
// inputs, on all cores of a CPU.
//
//   x [R, in] float32                          y [R, C * 16]
//   words [C, in / P, 16] int32                P = 4 or 8 inputs a word
//   scale, offset [C, in / G, 16] float32      offset may be empty
//
// A word holds P inputs of one column, the first in its lowest bits: four of
// eight bits, signed, or eight of four bits, from 0 to 15, whose even places
// hold the first four and whose odd places the last four. A weight is
// scale * value + offset, so a group adds scale * sum(x * value) +
// offset * sum(x) to y. `sum(x)` is taken once for all columns.
//
// Where `round` is set, x is rounded to eight bits in each group first, and
// sums of values are integers, which no order of additions changes.

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "rows.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

// a * b + c, always rounded once or always twice: left to themselves, compilers
// choose for each number of rows.
static inline Floats add_product(Floats a, Floats b, Floats c) {
#if defined(__FMA__) && LANES == 16 && defined(__AVX512F__)
  return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__) && LANES == 8
  return (Floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__) && LANES == 4
  return (Floats)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
  Floats product = a * b;
  HOLD(product);
  return product + c;
#endif
}

// Adds the products of the four bytes of each word, from 0 to 255, and of x, with
// signs.
#if defined(__AVX512VNNI__) && LANES == 16
static inline Ints dot(Ints sum, Words values, int32_t x) {
  return (Ints)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)values,
                                   _mm512_set1_epi32(x));
}
#elif defined(__AVX2__) && LANES == 8
// Halves of a byte apart, since sums of two products must fit into 16 bits.
static inline Ints dot(Ints sum, Words values, int32_t x) {
  __m256i ones = _mm256_set1_epi16(1), inputs = _mm256_set1_epi32(x);
  __m256i low = (__m256i)(values & 0x0f0f0f0fu);
  __m256i high = (__m256i)(values >> 4 & 0x0f0f0f0fu);
  low = _mm256_madd_epi16(_mm256_maddubs_epi16(low, inputs), ones);
  high = _mm256_madd_epi16(_mm256_maddubs_epi16(high, inputs), ones);
  return sum + (Ints)low + ((Ints)high << 4);
}
#else
static inline Ints dot(Ints sum, Words values, int32_t x) {
  _Pragma("GCC unroll 4") for (int k = 0; k < 4; k++) {
    Ints one = (Ints)(values >> 8 * k & 255);
    sum += one * (int32_t)(int8_t)(x >> 8 * k);
  }
  return sum;
}
#endif

enum {
  CHUNK = 256,       // rows whose x stays in a cache
  AHEAD = 32,        // words of a column that are fetched before they are needed
  GRAB = 64 * 1024,  // bytes that a thread takes at once
  LARGEST = 127,     // of a rounded x
  SIGN = 128,        // what makes a signed value of eight bits unsigned
};

typedef struct {
  const float *x;        // [rows, in]
  const float *sums;     // [rows, in / G], of inputs, rounded where `round`
  const int32_t *short_x;  // [rows, in / 4], four rounded inputs each
  const float *scales;   // [rows, in / G], of rounded inputs
  const int32_t *counts; // [rows, in / G], sums of the rounded inputs
  const uint32_t *words;
  const float *scale, *offset;
  float *y;
  int64_t count, inputs, outputs, groups, words_of_group;
  int bits;
  bool round;
} Grouped;

// Value k of each word, as a float.
static inline Floats value8(Words words, int k) {
  return __builtin_convertvector((Ints)(words << (24 - 8 * k)) >> 24, Floats);
}

static inline Floats value4(Words words, int k) {
  int place = 8 * (k % 4) + 4 * (k / 4);
  return __builtin_convertvector((Ints)(words >> place & 15), Floats);
}

#define UNROLL_ROWS(r, count) \
  _Pragma("GCC unroll 8") for (int r = 0; r < count; r++)
#define UNROLL_PARTS(c) _Pragma("GCC unroll 4") for (int c = 0; c < PARTS; c++)

// Where the rows of a block begin, and their sums so far.
#define OPEN_ROWS(count)                                       \
  int64_t step = COLUMNS * p->words_of_group;                  \
  const uint32_t *words = p->words + block * p->groups * step; \
  int64_t first = block * p->groups * COLUMNS;                 \
  const float *scales = p->scale + first;                      \
  const float *offsets = p->offset ? p->offset + first : NULL; \
  Floats total[count][PARTS] = {0};

// Adds a group's sums of a row to those of the groups before, and goes on.
#define ADD_GROUP(count, SCALED)                                          \
  UNROLL_PARTS(c) {                                                       \
    Floats scale = *(const Floats *)(scales + c * LANES);                 \
    if (offsets) {                                                        \
      Floats offset = *(const Floats *)(offsets + c * LANES);             \
      UNROLL_ROWS(r, count)                                               \
      total[r][c] = add_product(                                          \
          offset, (Floats){0} + p->sums[(row + r) * p->groups + group],   \
          total[r][c]);                                                   \
    }                                                                     \
    UNROLL_ROWS(r, count)                                                 \
    total[r][c] = add_product(scale, SCALED, total[r][c]);                \
  }                                                                       \
  words += step, scales += COLUMNS;                                       \
  if (offsets) offsets += COLUMNS;

#define CLOSE_ROWS(count)                                          \
  UNROLL_ROWS(r, count)                                            \
  UNROLL_PARTS(c)                                                  \
  *(Floats *)(p->y + (row + r) * p->outputs + block * COLUMNS +    \
              c * LANES) = total[r][c];

#define ROWS_OF_GROUPS(count, bits, per, value)                             \
  static void float##bits##_##count(const Grouped *p, int64_t block,        \
                                    int64_t row) {                          \
    OPEN_ROWS(count)                                                        \
    const float *x = p->x + row * p->inputs;                                \
    for (int64_t group = 0; group < p->groups; group++) {                   \
      Floats sums[count][PARTS] = {0};                                      \
      for (int64_t i = 0; i < step; i += COLUMNS, x += per) {               \
        __builtin_prefetch(words + i + AHEAD * COLUMNS);                    \
        UNROLL_PARTS(c) {                                                   \
          Words some = *(const Words *)(words + i + c * LANES);             \
          _Pragma("GCC unroll 8") for (int k = 0; k < per; k++) {           \
            Floats weights = value(some, k);                                \
            HOLD(weights);                                                  \
            UNROLL_ROWS(r, count)                                           \
            sums[r][c] = add_product((Floats){0} + x[r * p->inputs + k],    \
                                     weights, sums[r][c]);                  \
          }                                                                 \
        }                                                                   \
      }                                                                     \
      ADD_GROUP(count, sums[r][c])                                          \
    }                                                                       \
    CLOSE_ROWS(count)                                                       \
  }                                                                         \
  static void short##bits##_##count(const Grouped *p, int64_t block,        \
                                    int64_t row) {                          \
    OPEN_ROWS(count)                                                        \
    int64_t fours = p->inputs / 4;                                          \
    const int32_t *x = p->short_x + row * fours;                            \
    for (int64_t group = 0; group < p->groups; group++) {                   \
      Ints sums[count][PARTS];                                              \
      UNROLL_ROWS(r, count)                                                 \
      UNROLL_PARTS(c)                                                       \
      sums[r][c] = (Ints){0} - (bits == 8 ? SIGN : 0) *                     \
                                   p->counts[(row + r) * p->groups + group];\
      for (int64_t i = 0; i < step; i += COLUMNS, x += per / 4) {           \
        __builtin_prefetch(words + i + AHEAD * COLUMNS);                    \
        UNROLL_PARTS(c) {                                                   \
          Words some = *(const Words *)(words + i + c * LANES);             \
          if (bits == 8) {                                                  \
            some ^= 0x80808080u;                                            \
            UNROLL_ROWS(r, count)                                           \
            sums[r][c] = dot(sums[r][c], some, x[r * fours]);               \
          } else {                                                          \
            Words low = some & 0x0f0f0f0fu, high = some >> 4 & 0x0f0f0f0fu; \
            UNROLL_ROWS(r, count) {                                         \
              sums[r][c] = dot(sums[r][c], low, x[r * fours]);              \
              sums[r][c] = dot(sums[r][c], high, x[r * fours + 1]);         \
            }                                                               \
          }                                                                 \
        }                                                                   \
      }                                                                     \
      ADD_GROUP(count, __builtin_convertvector(sums[r][c], Floats) *        \
                           p->scales[(row + r) * p->groups + group])        \
    }                                                                       \
    CLOSE_ROWS(count)                                                       \
  }

#define OF_BITS(bits, per)                        \
  ROWS_OF_GROUPS(1, bits, per, value##bits)       \
  ROWS_OF_GROUPS(2, bits, per, value##bits)       \
  ROWS_OF_GROUPS(3, bits, per, value##bits)       \
  ROWS_OF_GROUPS(4, bits, per, value##bits)       \
  ROWS_OF_GROUPS(5, bits, per, value##bits)       \
  ROWS_OF_GROUPS(6, bits, per, value##bits)       \
  ROWS_OF_GROUPS(7, bits, per, value##bits)       \
  ROWS_OF_GROUPS(8, bits, per, value##bits)

OF_BITS(8, 4)
OF_BITS(4, 8)

typedef void Some(const Grouped *, int64_t block, int64_t row);
#define ALL(name) \
  {name##_1, name##_2, name##_3, name##_4, name##_5, name##_6, name##_7, name##_8}

static Some *const some[2][2][8] = {{ALL(float4), ALL(short4)},
                                    {ALL(float8), ALL(short8)}};

static void multiply_blocks(const void *job, int64_t from, int64_t to) {
  const Grouped *p = job;
  Some *const *rows = some[p->bits == 8][p->round];
  int64_t turns = (p->count + MOST - 1) / MOST;
  for (int64_t block = from; block < to; block++)
    for (int64_t turn = 0, row = 0; turn < turns; turn++) {
      int64_t left = turns - turn, count = (p->count - row + left - 1) / left;
      rows[count - 1](p, block, row);
      row += count;
    }
}

// Sums of the groups of one row, and its inputs in eight bits.
static void prepare(const Grouped *p, int64_t row, float *sums, float *scales,
                    int32_t *counts, int8_t *shorts) {
  int64_t size = p->inputs / p->groups;
  for (int64_t group = 0; group < p->groups; group++) {
    const float *x = p->x + row * p->inputs + group * size;
    int64_t place = row * p->groups + group;
    float sum = 0, most = 0;
    for (int64_t i = 0; i < size; i++) {
      sum += x[i];
      most = fmaxf(most, fabsf(x[i]));
    }
    sums[place] = sum;
    if (!p->round) continue;
    float inverse = most > 0 ? LARGEST / most : 0;
    int32_t count = 0;
    for (int64_t i = 0; i < size; i++) {
      int8_t rounded = (int8_t)nearbyintf(x[i] * inverse);
      shorts[row * p->inputs + group * size + i] = rounded;
      count += rounded;
    }
    scales[place] = most / LARGEST;
    counts[place] = count;
    sums[place] = scales[place] * count;
  }
}

EXPORTED XLA_FFI_Error *groups(XLA_FFI_CallFrame *frame) {
  if (told(frame)) return NULL;
  XLA_FFI_Buffer *const *args = (XLA_FFI_Buffer *const *)frame->args.args;
  const XLA_FFI_Buffer *x = args[0], *words = args[1], *scale = args[2];
  const XLA_FFI_Buffer *offset = args[3], *y = frame->rets.rets[0];
  if (x->rank != 2 || x->dtype != XLA_FFI_DataType_F32 || words->rank != 3 ||
      words->dtype != XLA_FFI_DataType_S32 || scale->rank != 3 ||
      scale->dtype != XLA_FFI_DataType_F32 || scale->dims[1] < 1 ||
      words->dims[2] != COLUMNS || scale->dims[2] != COLUMNS ||
      scale->dims[0] != words->dims[0] || words->dims[1] % scale->dims[1] ||
      (x->dims[1] != 4 * words->dims[1] && x->dims[1] != 8 * words->dims[1]))
    return refuse(frame, "x must be [R, in] float32, words [C, in / P, 16]");
  Grouped p = {.inputs = x->dims[1],
               .outputs = words->dims[0] * COLUMNS,
               .groups = scale->dims[1],
               .words_of_group = words->dims[1] / scale->dims[1],
               .words = words->data,
               .scale = scale->data,
               .offset = offset->rank == 3 ? offset->data : NULL,
               .bits = x->dims[1] == 4 * words->dims[1] ? 8 : 4,
               .round = ((const XLA_FFI_Buffer *)args[4])->rank == 0 &&
                        *(const int32_t *)args[4]->data};
  int64_t rows = x->dims[0], most = rows < CHUNK ? rows : CHUNK;
  float *sums = malloc(most * (p.groups * 12 + p.inputs) + 1);
  if (!sums) return refuse(frame, "no memory for the sums of groups");
  float *scales = sums + most * p.groups;
  int32_t *counts = (int32_t *)(scales + most * p.groups);
  int8_t *shorts = (int8_t *)(counts + most * p.groups);
  p.sums = sums, p.scales = scales, p.counts = counts;
  p.short_x = (const int32_t *)shorts;
  int64_t bytes = p.groups * COLUMNS * (4 * p.words_of_group + 8);
  for (int64_t row = 0; row < rows; row += p.count) {
    int64_t left = rows - row, chunks = (left + CHUNK - 1) / CHUNK;
    p.x = (const float *)x->data + row * p.inputs;
    p.y = (float *)y->data + row * p.outputs;
    p.count = (left + chunks - 1) / chunks;
    // Without offsets, inputs in floats are used as they are.
    for (int64_t i = 0; i < p.count && (p.offset || p.round); i++)
      prepare(&p, i, sums, scales, counts, shorts);
    share(multiply_blocks, &p, words->dims[0], 1 + GRAB / (bytes + 1));
  }
  free(sums);
  return NULL;
}
