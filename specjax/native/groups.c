// Rows times a weight of few bits with a scale and an offset for each group of
// inputs, on all cores of a CPU.
//
//   x [R, in] float32                          y [R, C * 16]
//   words [C, in * bits / 32, 16] int32        eight, six or four bits
//   scale, offset [C, in / G, 16]              offset may be empty
//   their units [C, in / S, 16]                may be empty: 1
//
// A word of eight bits holds four inputs of one column, the first in its lowest
// bits, with signs. A word of four bits holds eight, from 0 to 15: the lower
// half of each byte is one of the first four. Three words of six bits hold
// sixteen, from 0 to 63: two words have their lower halves, as in four bits, and
// the third has the upper two bits of four inputs in each byte.
//
// A weight is scale * (value - zero) + offset, where scale and offset are
// multiplied by their units, so a group adds scale * sum(x * (value - zero)) +
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

// Adds the products of the four bytes of each word, of values of so many bits
// without signs, and of x, with signs.
#if defined(__AVX512VNNI__) && LANES == 16
static inline Ints dot(Ints sum, Words values, int32_t x, int bits) {
  return (Ints)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)values,
                                   _mm512_set1_epi32(x));
}
#elif defined(__AVX2__) && LANES == 8
// Halves of eight bits apart, since sums of two products must fit into 16 bits.
static inline Ints dot(Ints sum, Words values, int32_t x, int bits) {
  __m256i ones = _mm256_set1_epi16(1), inputs = _mm256_set1_epi32(x);
  if (bits < 8)
    return sum + (Ints)_mm256_madd_epi16(
                     _mm256_maddubs_epi16((__m256i)values, inputs), ones);
  __m256i low = (__m256i)(values & 0x0f0f0f0fu);
  __m256i high = (__m256i)(values >> 4 & 0x0f0f0f0fu);
  low = _mm256_madd_epi16(_mm256_maddubs_epi16(low, inputs), ones);
  high = _mm256_madd_epi16(_mm256_maddubs_epi16(high, inputs), ones);
  return sum + (Ints)low + ((Ints)high << 4);
}
#else
static inline Ints dot(Ints sum, Words values, int32_t x, int bits) {
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
  EXPANDED = 16,     // groups whose scales are floats at once
};

// Scales, offsets or units: [C, size, 16], or nothing.
typedef struct {
  const void *data;
  int64_t size;
  XLA_FFI_DataType type;
} Factors;

// What is known of the inputs before any column is read. Rows that columns in
// registers serve together are a turn, and lie side by side.
typedef struct {
  float *x;          // [in, count] of each turn, where not `round`
  int32_t *short_x;  // [in / 4, count], four rounded inputs each
  float *sums;       // [in / G, count], of inputs, rounded where `round`
  float *scales;     // [in / G, count], of rounded inputs
  int32_t *starts;   // [in / G, count], -zero times the rounded inputs
  const uint32_t *words;
  Factors scale, scale_unit, offset, offset_unit;
  float *y;
  int64_t count, inputs, outputs, groups, words_of_group;
  int bits, zero;
  bool round;
} Grouped;

// Four values of each column as bytes without signs: the four of number k that
// begin at `words`.
static inline Words bytes8(const uint32_t *words, int k) {
  return *(const Words *)words ^ 0x80808080u;
}

static inline Words bytes4(const uint32_t *words, int k) {
  return *(const Words *)words >> 4 * k & 0x0f0f0f0fu;
}

static inline Words bytes6(const uint32_t *words, int k) {
  Words high = *(const Words *)(words + 2 * COLUMNS);
  high = k < 2 ? high << (4 - 2 * k) : high >> (2 * k - 4);
  return bytes4(words + k / 2 * COLUMNS, k % 2) | (high & 0x30303030u);
}

// Words of a column that are read at once, and fours of inputs in them.
enum { WORDS8 = 1, FOURS8 = 1, WORDS4 = 1, FOURS4 = 2, WORDS6 = 3, FOURS6 = 4 };

// Byte k of each word less `zero`, as a float: behind the digits of 2^23.
static inline Floats value(Words bytes, int k, Floats zero) {
  return (Floats)((bytes >> 8 * k & 255) | 0x4b000000u) - zero;
}

static inline Floats from_half(const uint16_t *halves) {
#if defined(__AVX512F__) && LANES == 16
  return (Floats)_mm512_cvtph_ps(*(const __m256i_u *)halves);
#elif defined(__F16C__) && LANES == 8
  return (Floats)_mm256_cvtph_ps(*(const __m128i_u *)halves);
#else
  Words x = __builtin_convertvector(*(const Halves *)halves, Words);
  Words size = x & 0x7fff, small = (Words)((size & 0x7c00) == 0);
  Words usual = (size << 13) + (112u << 23);
  Floats tiny = __builtin_convertvector((Ints)size, Floats) * 0x1p-24f;
  return (Floats)(((Words)tiny & small) | (usual & ~small) |
                  (x & 0x8000) << 16);
#endif
}

typedef int8_t Bytes VECTOR(int8_t);

static inline Floats from_byte(const int8_t *bytes) {
  // Compilers convert vectors of bytes one by one.
#if defined(__AVX512F__) && LANES == 16
  Ints x = (Ints)_mm512_cvtepi8_epi32(*(const __m128i_u *)bytes);
#elif defined(__AVX2__) && LANES == 8
  Ints x = (Ints)_mm256_cvtepi8_epi32(_mm_loadu_si64(bytes));
#else
  Ints x = __builtin_convertvector(*(const Bytes *)bytes, Ints);
#endif
  return __builtin_convertvector(x, Floats);
}

// Sixteen factors of every type, as floats.
static inline Floats factor(Factors factors, int64_t place) {
  if (factors.type == XLA_FFI_DataType_F32)
    return from_float((const float *)factors.data + place);
  if (factors.type == XLA_FFI_DataType_F16)
    return from_half((const uint16_t *)factors.data + place);
  return from_byte((const int8_t *)factors.data + place);
}

#define EXPAND(type, load)                                                   \
  for (int64_t group = from; group < to; group++)                            \
    for (int c = 0; c < COLUMNS; c += LANES) {                               \
      const type *x = (const type *)factors.data + c;                        \
      __builtin_prefetch(x + (first + group + EXPANDED) * COLUMNS);          \
      Floats made = load(x + (first + group) * COLUMNS);                     \
      if (unit.size) made *= *(const Floats *)(units + c);                   \
      *(Floats *)(floats + (group - from) * COLUMNS + c) = made;             \
    }

// Factors of a block of columns for groups from .. to, which have one unit.
static inline void expand_some(Factors factors, Factors unit, int64_t block,
                               int64_t from, int64_t to, float *floats) {
  int64_t first = block * factors.size;
  float units[COLUMNS];
  for (int c = 0; c < COLUMNS && unit.size; c += LANES) {
    int64_t place = block * unit.size + from * unit.size / factors.size;
    *(Floats *)(units + c) = factor(unit, place * COLUMNS + c);
  }
  if (factors.type == XLA_FFI_DataType_F32) {
    EXPAND(float, from_float)
  } else if (factors.type == XLA_FFI_DataType_F16) {
    EXPAND(uint16_t, from_half)
  } else {
    EXPAND(int8_t, from_byte)
  }
}

// Factors of a block of columns times their units, for groups from .. to.
static void expand(Factors factors, Factors unit, int64_t block, int64_t from,
                   int64_t to, float *floats) {
  int64_t each = unit.size ? factors.size / unit.size : factors.size;
  while (from < to) {
    int64_t end = (from / each + 1) * each;
    if (end > to) end = to;
    expand_some(factors, unit, block, from, end, floats);
    floats += (end - from) * COLUMNS, from = end;
  }
}

#define UNROLL_ROWS(r, count) \
  _Pragma("GCC unroll 8") for (int r = 0; r < count; r++)
#define UNROLL_PARTS(c) _Pragma("GCC unroll 4") for (int c = 0; c < PARTS; c++)

// Where the rows of a block begin, and their sums so far.
#define OPEN_ROWS(count)                                         \
  int64_t step = COLUMNS * p->words_of_group;                    \
  const uint32_t *words = p->words + block * p->groups * step;   \
  const float *sums = p->sums + row * p->groups;                 \
  float scales[EXPANDED * COLUMNS], offsets[EXPANDED * COLUMNS]; \
  Floats total[count][PARTS] = {0};

// Makes the scales and offsets of the next groups floats, once in a while.
#define OPEN_GROUP                                                   \
  int64_t place = group % EXPANDED * COLUMNS;                        \
  if (!place) {                                                      \
    int64_t end = group + EXPANDED;                                  \
    if (end > p->groups) end = p->groups;                            \
    expand(p->scale, p->scale_unit, block, group, end, scales);      \
    if (p->offset.size)                                              \
      expand(p->offset, p->offset_unit, block, group, end, offsets); \
  }

// Adds a group's products of a row to those of the groups before, and goes on.
#define ADD_GROUP(count, SCALED)                                     \
  UNROLL_PARTS(c) {                                                  \
    Floats scale = *(const Floats *)(scales + place + c * LANES);    \
    if (p->offset.size) {                                            \
      Floats offset = *(const Floats *)(offsets + place + c * LANES);\
      UNROLL_ROWS(r, count)                                          \
      total[r][c] =                                                  \
          add_product(offset, (Floats){0} + sums[r], total[r][c]);   \
    }                                                                \
    UNROLL_ROWS(r, count)                                            \
    total[r][c] = add_product(scale, SCALED, total[r][c]);           \
  }                                                                  \
  words += step, sums += count;

#define CLOSE_ROWS(count)                                       \
  UNROLL_ROWS(r, count)                                         \
  UNROLL_PARTS(c)                                               \
  *(Floats *)(p->y + (row + r) * p->outputs + block * COLUMNS + \
              c * LANES) = total[r][c];

#define ROWS_OF_GROUPS(count, bits)                                           \
  static void float##bits##_##count(const Grouped *p, int64_t block,          \
                                    int64_t row) {                            \
    OPEN_ROWS(count)                                                          \
    const float *x = p->x + row * p->inputs;                                  \
    Floats zero = (Floats){0} + (0x1p23f + p->zero);                          \
    for (int64_t group = 0; group < p->groups; group++) {                     \
      OPEN_GROUP                                                              \
      Floats dots[count][PARTS] = {0};                                        \
      for (int64_t i = 0; i < step;                                           \
           i += WORDS##bits * COLUMNS, x += 4 * FOURS##bits * count) {        \
        __builtin_prefetch(words + i + AHEAD * COLUMNS);                      \
        UNROLL_PARTS(c)                                                       \
        _Pragma("GCC unroll 16") for (int k = 0; k < 4 * FOURS##bits; k++) {  \
          Words some = bytes##bits(words + i + c * LANES, k / 4);             \
          Floats weights = value(some, k % 4, zero);                          \
          HOLD(weights);                                                      \
          UNROLL_ROWS(r, count)                                               \
          dots[r][c] = add_product((Floats){0} + x[k * count + r], weights,   \
                                   dots[r][c]);                               \
        }                                                                     \
      }                                                                       \
      ADD_GROUP(count, dots[r][c])                                            \
    }                                                                         \
    CLOSE_ROWS(count)                                                         \
  }                                                                           \
  static void short##bits##_##count(const Grouped *p, int64_t block,          \
                                    int64_t row) {                            \
    OPEN_ROWS(count)                                                          \
    const int32_t *x = p->short_x + row * p->inputs / 4;                      \
    const int32_t *starts = p->starts + row * p->groups;                      \
    const float *x_scales = p->scales + row * p->groups;                      \
    for (int64_t group = 0; group < p->groups; group++) {                     \
      OPEN_GROUP                                                              \
      Ints dots[count][PARTS];                                                \
      UNROLL_ROWS(r, count)                                                   \
      UNROLL_PARTS(c)                                                         \
      dots[r][c] = (Ints){0} + starts[r];                                     \
      for (int64_t i = 0; i < step;                                           \
           i += WORDS##bits * COLUMNS, x += FOURS##bits * count) {            \
        __builtin_prefetch(words + i + AHEAD * COLUMNS);                      \
        UNROLL_PARTS(c)                                                       \
        _Pragma("GCC unroll 4") for (int k = 0; k < FOURS##bits; k++) {       \
          Words some = bytes##bits(words + i + c * LANES, k);                 \
          UNROLL_ROWS(r, count)                                               \
          dots[r][c] = dot(dots[r][c], some, x[k * count + r], bits);         \
        }                                                                     \
      }                                                                       \
      ADD_GROUP(count, __builtin_convertvector(dots[r][c], Floats) *          \
                           x_scales[r])                                       \
      starts += count, x_scales += count;                                     \
    }                                                                         \
    CLOSE_ROWS(count)                                                         \
  }

#define OF_BITS(bits)     \
  ROWS_OF_GROUPS(1, bits) \
  ROWS_OF_GROUPS(2, bits) \
  ROWS_OF_GROUPS(3, bits) \
  ROWS_OF_GROUPS(4, bits) \
  ROWS_OF_GROUPS(5, bits) \
  ROWS_OF_GROUPS(6, bits) \
  ROWS_OF_GROUPS(7, bits) \
  ROWS_OF_GROUPS(8, bits)

OF_BITS(4)
OF_BITS(6)
OF_BITS(8)

typedef void Some(const Grouped *, int64_t block, int64_t row);
#define ALL(name) \
  {name##_1, name##_2, name##_3, name##_4, name##_5, name##_6, name##_7, name##_8}

static Some *const some[3][2][8] = {{ALL(float4), ALL(short4)},
                                    {ALL(float6), ALL(short6)},
                                    {ALL(float8), ALL(short8)}};

// Rows of the next turn, as even as can be.
static int64_t rows_of_turn(const Grouped *p, int64_t row) {
  int64_t left = p->count - row, turns = (left + MOST - 1) / MOST;
  return (left + turns - 1) / turns;
}

static void multiply_blocks(const void *job, int64_t from, int64_t to) {
  const Grouped *p = job;
  Some *const *rows = some[p->bits / 2 - 2][p->round];
  for (int64_t block = from; block < to; block++)
    for (int64_t row = 0, count; row < p->count; row += count) {
      count = rows_of_turn(p, row);
      rows[count - 1](p, block, row);
    }
}

static const float LEAST = 1e-36f;  // whose inverse is a float, as in JAX

// A group of one row in eight bits; its largest input.
static inline float round_group(const float *x, int64_t size, int8_t *rounded,
                                int32_t *total) {
  int32_t most = 0, sum = 0;  // Sizes of floats are in the order of their bits.
  for (int64_t i = 0; i < size; i++) {
    int32_t bits;
    memcpy(&bits, x + i, sizeof bits);
    bits &= 0x7fffffff;
    most = bits > most ? bits : most;
  }
  float largest;
  memcpy(&largest, &most, sizeof most);
  float inverse = largest > LEAST ? LARGEST / largest : 0;
  for (int64_t i = 0; i < size; i++) {
    int32_t one = (int32_t)nearbyintf(x[i] * inverse);
    rounded[i] = (int8_t)one;
    sum += one;
  }
  *total = sum;
  return largest;
}

// Takes rows of a turn, and what is known of them.
static void prepare(const Grouped *p, const float *x, int64_t row,
                    int64_t count) {
  int64_t size = p->inputs / p->groups;
  int64_t first = row * p->groups, start = row * p->inputs;
  for (int64_t r = 0; r < count; r++)
    for (int64_t group = 0; group < p->groups; group++, x += size) {
      int64_t place = first + group * count + r;
      if (p->round) {
        int32_t *kept = p->short_x + (start + group * size * count) / 4;
        int32_t total, fours[size / 4];
        float most = round_group(x, size, (int8_t *)fours, &total);
        for (int64_t i = 0; i < size / 4; i++) kept[i * count + r] = fours[i];
        p->scales[place] = most / LARGEST;
        p->starts[place] = -p->zero * total;
        p->sums[place] = p->scales[place] * total;
        continue;
      }
      float sum = 0, *kept = p->x + start + group * size * count;
      for (int64_t i = 0; i < size; i++) {
        kept[i * count + r] = x[i];
        sum += x[i];
      }
      p->sums[place] = sum;
    }
}

// What a buffer has of `blocks` blocks; false: it has other axes or types.
static bool read_factors(const XLA_FFI_Buffer *buffer, int64_t blocks,
                         Factors *made) {
  if (buffer->rank == 1 && !buffer->dims[0]) return true;
  if (buffer->rank != 3 || buffer->dims[0] != blocks || buffer->dims[1] < 1 ||
      buffer->dims[2] != COLUMNS ||
      (buffer->dtype != XLA_FFI_DataType_F32 &&
       buffer->dtype != XLA_FFI_DataType_F16 &&
       buffer->dtype != XLA_FFI_DataType_S8))
    return false;
  *made = (Factors){buffer->data, buffer->dims[1], buffer->dtype};
  return true;
}

EXPORTED XLA_FFI_Error *groups(XLA_FFI_CallFrame *frame) {
  if (told(frame)) return NULL;
  XLA_FFI_Buffer *const *args = (XLA_FFI_Buffer *const *)frame->args.args;
  const XLA_FFI_Buffer *x = args[0], *words = args[1], *y = frame->rets.rets[0];
  const XLA_FFI_Buffer *settings = args[6];
  const char *expected = "x must be [R, in] float32, words [C, in / P, 16]";
  if (x->rank != 2 || x->dtype != XLA_FFI_DataType_F32 || words->rank != 3 ||
      words->dtype != XLA_FFI_DataType_S32 || words->dims[2] != COLUMNS ||
      settings->rank != 1 || settings->dims[0] != 2)
    return refuse(frame, expected);
  int64_t blocks = words->dims[0], inputs = x->dims[1];
  Grouped p = {.inputs = inputs,
               .outputs = blocks * COLUMNS,
               .words = words->data,
               .round = ((const int32_t *)settings->data)[0],
               .zero = ((const int32_t *)settings->data)[1]};
  if (!read_factors(args[2], blocks, &p.scale) ||
      !read_factors(args[3], blocks, &p.scale_unit) ||
      !read_factors(args[4], blocks, &p.offset) ||
      !read_factors(args[5], blocks, &p.offset_unit) || !p.scale.size)
    return refuse(frame, expected);
  p.groups = p.scale.size;
  for (int bits = 4; bits <= 8; bits += 2)
    if (words->dims[1] * 32 == inputs * bits) p.bits = bits;
  int64_t turn = p.bits == 6 ? 16 : p.bits == 4 ? 8 : 4;
  if (!p.bits || inputs % (p.groups * turn) ||
      (p.offset.size && p.offset.size != p.groups) ||
      (p.scale_unit.size && p.groups % p.scale_unit.size) ||
      (p.offset_unit.size && p.groups % p.offset_unit.size))
    return refuse(frame, expected);
  p.words_of_group = words->dims[1] / p.groups;
  if (p.bits == 8) p.zero = SIGN;  // Its values have signs.
  int64_t rows = x->dims[0], most = rows < CHUNK ? rows : CHUNK;
  int64_t each = p.groups * 12 + inputs * (p.round ? 1 : sizeof(float));
  float *memory = malloc(most * each + 1);
  if (!memory) return refuse(frame, "no memory for the rows");
  int64_t all = most * p.groups;
  p.sums = memory, p.scales = memory + all, p.x = memory + 3 * all;
  p.starts = (int32_t *)(p.scales + all), p.short_x = (int32_t *)p.x;
  int64_t bytes = p.groups * COLUMNS * (4 * p.words_of_group + 4);
  for (int64_t first = 0; first < rows; first += p.count) {
    int64_t left = rows - first, chunks = (left + CHUNK - 1) / CHUNK;
    p.y = (float *)y->data + first * p.outputs;
    p.count = (left + chunks - 1) / chunks;
    for (int64_t row = 0, count; row < p.count; row += count) {
      count = rows_of_turn(&p, row);
      const float *some = (const float *)x->data + (first + row) * inputs;
      prepare(&p, some, row, count);
    }
    share(multiply_blocks, &p, blocks, 1 + GRAB / (bytes + 1));
  }
  free(memory);
  return NULL;
}
