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
// sixteen, from 0 to 63: two words have their lower halves, as in four bits,
// and the third has the upper two bits of four inputs in each byte.
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

// Sums of products of the four bytes of each word, without signs, and of x,
// with signs: `begin_sum`, `add_four` for some inputs, and `end_sum`.
//
// AVX2 has no instruction that adds four products to 32 bits, so sums of two
// are added up in 16 bits: eight times, which is 32 inputs, where bytes are
// below 16, and twice where they are below 64. Eight bits are two halves of
// four, the lower ones first.
#if defined(__AVX2__) && LANES == 8
#define HALVES(bits) (bits == 8 ? 2 : 1)
#define MOST_ADDED(bits, words) (bits == 6 ? words : bits * COLUMNS)

static inline Ints begin_sum(Ints sum) { return (Ints){0}; }

static inline Ints add_four(Ints held, Words values, int32_t x) {
  return (Ints)_mm256_add_epi16(
      (__m256i)held,
      _mm256_maddubs_epi16((__m256i)values, _mm256_set1_epi32(x)));
}

static inline Ints end_sum(Ints sum, Ints held, int16_t weight) {
  return sum + (Ints)_mm256_madd_epi16((__m256i)held,
                                       _mm256_set1_epi16(weight));
}
#else
#define HALVES(bits) 1
#define MOST_ADDED(bits, words) words

static inline Ints begin_sum(Ints sum) { return sum; }

static inline Ints add_four(Ints held, Words values, int32_t x) {
#if defined(__AVX512VNNI__) && LANES == 16
  return (Ints)_mm512_dpbusd_epi32((__m512i)held, (__m512i)values,
                                   _mm512_set1_epi32(x));
#else
  _Pragma("GCC unroll 4") for (int k = 0; k < 4; k++) {
    Ints one = (Ints)(values >> 8 * k & 255);
    held += one * (int32_t)(int8_t)(x >> 8 * k);
  }
  return held;
#endif
}

static inline Ints end_sum(Ints sum, Ints held, int16_t weight) { return held; }
#endif

enum {
  CHUNK = 256,       // rows whose x stays in a cache
  AHEAD = 64,        // words of a column that are fetched early
  EARLY = 32,        // groups whose factors are fetched early
  GRAB = 64 * 1024,  // bytes that a thread takes at once, or more
  LITTLE = 4096,     // inputs that a thread prepares at once, or more
  LARGEST = 127,     // of a rounded x
  SIGN = 128,        // what makes a signed value of eight bits unsigned
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
  const float *given;  // [rows, in]
  // What undoes the places of a turn's values; inputs below 1e-30 may become 0.
  float powers[16];
  float *x;          // [in, count] of each turn, where not `round`
  int32_t *short_x;  // [in / 4, count], four rounded inputs each
  float *sums;       // [in / G, count], of inputs, rounded where `round`
  float *scales;     // [in / G, count], of rounded inputs
  int32_t *starts;   // [in / G, count], -zero times the rounded inputs
  const uint32_t *words;
  Factors scale, scale_unit, offset, offset_unit;
  float *y;
  int64_t live[CHUNK];  // the rows that are computed, `count` of them
  int64_t count, inputs, outputs, groups, words_of_group;
  int bits, zero;
  bool round;
} Grouped;

// Words of a column that are read in a turn, and values in them.
#define WORDS_OF_TURN(bits) (bits == 6 ? 3 : 1)
#define TURN(bits) (WORDS_OF_TURN(bits) * COLUMNS)
#define VALUES_OF_TURN(bits) (WORDS_OF_TURN(bits) * 32 / bits)

// Four values of each column as bytes without signs, of number k in a turn; of
// eight bits a half of each, where there are two.
static inline Words bytes(const uint32_t *words, int k, int bits, int half) {
  const Words *low = (const Words *)(words + k / 2 * COLUMNS);
  if (bits == 8)
    return HALVES(8) == 1 ? *low ^ 0x80808080u
                          : (*low ^ 0x80808080u) >> 4 * half & 0x0f0f0f0fu;
  Words made = *low >> 4 * (k % 2) & 0x0f0f0f0fu;
  if (bits == 4) return made;
  Words high = *(const Words *)(words + 2 * COLUMNS);
  high = k < 2 ? high << (4 - 2 * k) : high >> (2 * k - 4);
  return made | (high & 0x30303030u);
}

// How far a value of number k in a turn is moved to the left: to its own place,
// or to the upper end of the word, which has its sign.
static inline int place_of(int k, int bits) {
  return bits == 4 && k < 7 ? 8 * (k % 4) + k / 4 * 4 : 24;
}

// A value of each column less `zero`, so moved.
static inline Floats value(const uint32_t *words, int k, int bits, int zero) {
  Words moved = *(const Words *)words;
  if (bits == 4) {
    moved = (k < 7 ? moved : moved >> 4) & 15u << place_of(k, 4);
    return __builtin_convertvector((Ints)moved - (zero << place_of(k, 4)),
                                   Floats);
  }
  if (bits == 6)  // Bytes with signs: none of them borrows from the next.
    moved = ((bytes(words, k / 4, 6, 0) | 0x80808080u) -
             0x01010101u * zero) ^ 0x80808080u;
  moved = moved << (24 - 8 * (k % 4)) & 0xff000000u;
  return __builtin_convertvector((Ints)moved, Floats);
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

static inline int64_t size_of(Factors factors) {
  return factors.type == XLA_FFI_DataType_S8    ? 1
         : factors.type == XLA_FFI_DataType_F16 ? 2
                                                : 4;
}

// Factors of a block of columns, group by group, as floats.
typedef struct {
  Factors factors, units;
  int64_t place, place_of_unit;  // of the next ones
  int64_t each, left;            // groups of a unit, and those it still serves
  Floats unit[PARTS], now[PARTS];
} Reader;

static inline Reader read_block(Factors factors, Factors units, int64_t block) {
  Reader r = {.factors = factors,
              .units = units,
              .place = block * factors.size * COLUMNS,
              .place_of_unit = block * units.size * COLUMNS,
              .each = units.size ? factors.size / units.size : factors.size};
  for (int c = 0; c < PARTS; c++) r.unit[c] = spread(1);
  return r;
}

static inline __attribute__((always_inline)) void read_group(Reader *r) {
  if (!r->left) {
    r->left = r->each;
    for (int c = 0; c < PARTS && r->units.size; c++)
      r->unit[c] = factor(r->units, r->place_of_unit + c * LANES);
    r->place_of_unit += COLUMNS;
  }
  int64_t early = (r->place + EARLY * COLUMNS) * size_of(r->factors);
  __builtin_prefetch((const char *)r->factors.data + early);
  for (int c = 0; c < PARTS; c++)
    r->now[c] = factor(r->factors, r->place + c * LANES) * r->unit[c];
  r->place += COLUMNS;
  r->left--;
}

#define UNROLL(i, count) \
  _Pragma("GCC unroll 8") for (int i = 0; i < count; i++)
#define EACH(r, c, count) UNROLL(r, count) UNROLL(c, PARTS)

// Where the rows of a block begin, and their sums so far.
#define OPEN_BLOCK(count)                                                    \
  const int64_t step = p->words_of_group * COLUMNS;                          \
  const uint32_t *words = p->words + block * p->groups * step;               \
  const float *sums = p->sums + row * p->groups;                             \
  Reader scale = read_block(p->scale, p->scale_unit, block);                 \
  Reader offset = read_block(p->offset, p->offset_unit, block);              \
  Floats total[count][PARTS] = {0};

#define OPEN_GROUP                                                           \
  read_group(&scale);                                                        \
  if (p->offset.size) read_group(&offset);

// Adds a group's products to those of the groups before.
#define ADD_GROUP(count, SCALED)                                             \
  if (p->offset.size)                                                        \
    EACH(r, c, count)                                                        \
    total[r][c] = add_product(offset.now[c], spread(sums[r]), total[r][c]);  \
  EACH(r, c, count)                                                          \
  total[r][c] = add_product(scale.now[c], SCALED, total[r][c]);

#define CLOSE_BLOCK(count)                                                   \
  EACH(r, c, count)                                                          \
  *(Floats *)(p->y + p->live[row + r] * p->outputs + block * COLUMNS +       \
              c * LANES) = total[r][c];

// Where a whole group is added up at once (`whole`), as groups of 32 inputs are,
// sums in 32 bits begin when those in 16 bits end, and registers hold both.
#define ROWS_OF_GROUPS(count, bits)                                          \
  static void floats##bits##_##count(const Grouped *p, int64_t block,        \
                                     int64_t row) {                          \
    OPEN_BLOCK(count)                                                        \
    enum { VALUES = VALUES_OF_TURN(bits) };                                  \
    const float *x = p->x + row * p->inputs;                                 \
    for (int64_t group = 0; group < p->groups; group++) {                    \
      OPEN_GROUP                                                             \
      Floats dots[count][PARTS], weights[PARTS];                             \
      EACH(r, c, count) dots[r][c] = (Floats){0};                            \
      for (int64_t i = 0; i < step; i += TURN(bits)) {                       \
        UNROLL(word, WORDS_OF_TURN(bits))                                    \
        __builtin_prefetch(words + i + (AHEAD + word) * COLUMNS);            \
        _Pragma("GCC unroll 16") for (int k = 0; k < VALUES; k++) {          \
          UNROLL(c, PARTS) {                                                 \
            weights[c] = value(words + i + c * LANES, k, bits, p->zero);     \
            HOLD(weights[c]);                                                \
          }                                                                  \
          EACH(r, c, count) {                                                \
            dots[r][c] = add_product(spread(x[k * count + r]),               \
                                     weights[c], dots[r][c]);                \
            HOLD(dots[r][c]);                                                \
          }                                                                  \
        }                                                                    \
        x += VALUES * count;                                                 \
      }                                                                      \
      ADD_GROUP(count, dots[r][c])                                           \
      words += step, sums += count;                                          \
    }                                                                        \
    CLOSE_BLOCK(count)                                                       \
  }                                                                          \
  static inline __attribute__((always_inline)) void add##bits##_##count(     \
      const Grouped *p, int64_t block, int64_t row, bool whole) {            \
    OPEN_BLOCK(count)                                                        \
    enum { FOURS = VALUES_OF_TURN(bits) / 4 };                               \
    const int32_t *x = p->short_x + row * p->inputs / 4;                     \
    const int32_t *starts = p->starts + row * p->groups;                     \
    const float *x_scales = p->scales + row * p->groups;                     \
    for (int64_t group = 0; group < p->groups; group++) {                    \
      OPEN_GROUP                                                             \
      Ints dots[count][PARTS], held[count][PARTS];                           \
      Words some[PARTS];                                                     \
      EACH(r, c, count) dots[r][c] = (Ints){0} + starts[r];                  \
      for (int64_t from = 0, to; from < step; from = to) {                   \
        to = whole ? step : from + MOST_ADDED(bits, step);                   \
        if (to > step) to = step;                                            \
        const int32_t *after = x;                                            \
        for (int half = 0; half < HALVES(bits); half++) {                    \
          after = x;                                                         \
          EACH(r, c, count) held[r][c] = begin_sum(dots[r][c]);              \
          for (int64_t i = from; i < to; i += TURN(bits)) {                  \
            UNROLL(word, WORDS_OF_TURN(bits))                                \
            __builtin_prefetch(words + i + (AHEAD + word) * COLUMNS);        \
            _Pragma("GCC unroll 4") for (int k = 0; k < FOURS; k++) {        \
              UNROLL(c, PARTS)                                               \
              some[c] = bytes(words + i + c * LANES, k, bits, half);         \
              EACH(r, c, count) {                                            \
                int32_t four = after[k * count + r];                         \
                held[r][c] = add_four(held[r][c], some[c], four);            \
                HOLD(held[r][c]);                                            \
              }                                                              \
              if (bits == 6 && k % 2)                                        \
                EACH(r, c, count) {                                          \
                  dots[r][c] = end_sum(dots[r][c], held[r][c], 1);           \
                  held[r][c] = begin_sum(dots[r][c]);                        \
                }                                                            \
            }                                                                \
            after += FOURS * count;                                          \
          }                                                                  \
          if (bits != 6)                                                     \
            EACH(r, c, count)                                                \
            dots[r][c] = end_sum(dots[r][c], held[r][c], half ? 16 : 1);     \
        }                                                                    \
        x = after;                                                           \
      }                                                                      \
      ADD_GROUP(count, __builtin_convertvector(dots[r][c], Floats) *         \
                            spread(x_scales[r]))                             \
      words += step, sums += count, starts += count, x_scales += count;      \
    }                                                                        \
    CLOSE_BLOCK(count)                                                       \
  }                                                                          \
  static void shorts##bits##_##count(const Grouped *p, int64_t block,        \
                                     int64_t row) {                          \
    int64_t step = p->words_of_group * COLUMNS;                              \
    if (step <= MOST_ADDED(bits, step))                                      \
      add##bits##_##count(p, block, row, true);                              \
    else                                                                     \
      add##bits##_##count(p, block, row, false);                             \
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
#define ALL(name)                                \
  {name##_1, name##_2, name##_3, name##_4,       \
   name##_5, name##_6, name##_7, name##_8}

static Some *const some[3][2][8] = {{ALL(floats4), ALL(shorts4)},
                                    {ALL(floats6), ALL(shorts6)},
                                    {ALL(floats8), ALL(shorts8)}};

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

// A group may have fewer bytes than a vector of AVX-512.
#if defined(__AVX512F__) && !defined(__clang__) && __GNUC__ >= 10
#define NARROW __attribute__((noinline, target("prefer-vector-width=256")))
#else
#define NARROW inline
#endif

// A group of one row in eight bits; its largest input.
static NARROW float round_group(const float *x, int64_t size, int8_t *rounded,
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
  if (!isfinite(largest)) {  // The scale tells of it.
    memset(rounded, 0, size);
    *total = 0;
    return largest;
  }
  float inverse = largest > LEAST ? LARGEST / largest : 0;
  for (int64_t i = 0; i < size; i++) {
    int32_t one = (int32_t)nearbyintf(x[i] * inverse);
    rounded[i] = (int8_t)one;
    sum += one;
  }
  *total = sum;
  return largest;
}

// Takes groups from .. to of row r of the turn of `count` rows that begins with a
// row, and what is known of them.
static void prepare(const Grouped *p, int64_t begin, int64_t count, int64_t r,
                    int64_t from, int64_t to) {
  int64_t size = p->inputs / p->groups, turn = VALUES_OF_TURN(p->bits);
  int64_t first = begin * p->groups, start = begin * p->inputs;
  const float *x = p->given + p->live[begin + r] * p->inputs + from * size;
  for (int64_t group = from; group < to; group++, x += size) {
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
    for (int64_t i = 0; i < size; i += turn)
      for (int64_t k = 0; k < turn; k++) {
        kept[(i + k) * count + r] = x[i + k] * p->powers[k];
        sum += x[i + k];
      }
    p->sums[place] = sum;
  }
}

// Takes groups of all rows: rows of a turn lie too near for two threads.
static void prepare_groups(const void *job, int64_t from, int64_t to) {
  const Grouped *p = job;
  for (int64_t row = 0, count; row < p->count; row += count) {
    count = rows_of_turn(p, row);
    for (int64_t r = 0; r < count; r++) prepare(p, row, count, r, from, to);
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
  if (!p.bits || !inputs) return refuse(frame, expected);
  int64_t turn = VALUES_OF_TURN(p.bits);
  if (inputs % (p.groups * turn) ||
      (p.offset.size && p.offset.size != p.groups) ||
      (p.scale_unit.size && p.groups % p.scale_unit.size) ||
      (p.offset_unit.size && p.groups % p.offset_unit.size))
    return refuse(frame, expected);
  p.words_of_group = words->dims[1] / p.groups;
  if (p.bits == 8) p.zero = SIGN;  // Its values have signs.
  int64_t rows = x->dims[0], most = rows < CHUNK ? rows : CHUNK;
  for (int k = 0; k < turn && !p.round; k++)
    p.powers[k] = ldexpf(1, -place_of(k, p.bits));
  int64_t each = p.groups * 12 + inputs * (p.round ? 1 : sizeof(float));
  float *memory = malloc(most * each + 1);
  if (!memory) return refuse(frame, "no memory for the rows");
  int64_t all = most * p.groups;
  p.sums = memory, p.scales = memory + all, p.x = memory + 3 * all;
  p.starts = (int32_t *)(p.scales + all), p.short_x = (int32_t *)p.x;
  int64_t bytes = p.groups * COLUMNS * (4 * p.words_of_group + 4);
  for (int64_t first = 0, taken; first < rows; first += taken) {
    int64_t left = rows - first, chunks = (left + CHUNK - 1) / CHUNK;
    taken = (left + chunks - 1) / chunks;
    p.y = (float *)y->data + first * p.outputs;
    p.given = (const float *)x->data + first * inputs;
    p.count = 0;
    for (int64_t row = 0; row < taken; row++)
      if (is_zero(p.given + row * inputs, inputs))
        memset(p.y + row * p.outputs, 0, p.outputs * sizeof *p.y);
      else
        p.live[p.count++] = row;
    if (!p.count) continue;
    share(prepare_groups, &p, p.groups,
          1 + LITTLE * p.groups / (p.count * inputs));
    share(multiply_blocks, &p, blocks, 1 + GRAB / (bytes + 1));
  }
  free(memory);
  return NULL;
}
