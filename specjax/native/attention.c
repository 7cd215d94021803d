// Attention to a cache and to the block in flight, in one pass over both.
//
//   q [B, T, G, R, D]   keys [B, G, D, S]   values [B, G, S, D]   y as q
//
// q, y and biases are float32, keys and values float32 or bfloat16. Slots are
// taken in chunks, whose softmax statistics are merged as they come (Dao et al.,
// arXiv:2205.14135). A chunk begins at a multiple of its size, whatever is seen
// of it. Rows of the block are taken where they lie once they are in the cache:
// behind its last slot, in their order. So a query has the same bits alone and
// beside others, and whatever part of its text is still in the block.

#include <float.h>
#include <math.h>
#include <string.h>

#include "exponential.h"
#include "rows.h"

enum {
  CHUNK = 128,        // slots at once
  WIDEST = 256,       // a head, at most
  PAGE = 4096,        // bytes; keys this far apart share few places of a cache
  LINE = 64,          // bytes of a cache
  TOGETHER = 4,       // shares of rows, at most, that a chunk is read for once
  ALONE = 64 * 1024,  // products that one thread is faster with
  SOME = -1,
};

// What is not seen lies so far below any largest score that its weight is 0.
static const float UNSEEN = -FLT_MAX / 2, LOWEST = -FLT_MAX / 4;

ALL_ROWS(float, from_float)
ALL_ROWS(uint16_t, from_bfloat16)

typedef struct {
  const char *keys, *values;
  Rows *const *rows;  // of their type
  int64_t slots, size;
  const float *bias;  // [B, G, R, T, slots], or none
} Memory;

typedef struct {
  const float *q;
  float *y;
  Memory cache, block;
  const int32_t *length;  // [B] of the cache
  const int32_t *first;   // [B, T] slots that are seen from there on, or none
  const bool *mask;       // [B, T, slots of the block] that are of its text
  float cap;              // of the scores; 0: none
  int64_t sinks;          // first slots, which are seen as well
  int64_t tokens, groups, heads, width;  // T, G, R, D
  int64_t shares;    // of the R * T rows of a group
  int64_t together;  // of these, that one thread takes
} Attention;

// Some rows of a group: row m is token m % T of head m / T.
typedef struct {
  const Attention *a;
  int64_t batch, group, from, count;
  float q[MOST * WIDEST], value[MOST * WIDEST];
  float weights[MOST * CHUNK];  // of a chunk's places: first their scores
  float scores[MOST * CHUNK];   // of slots, where they lie in other places
  float top[MOST], total[MOST];
  // Slots of the block that are of a row's text, where they are the first ones
  // and all behind `first` are seen; else SOME.
  int64_t run[MOST];
} Share;

// A chunk of slots, and its keys [D, slots] for all shares.
typedef struct {
  const Memory *memory;
  int64_t from, count, next;  // slots, and those of the chunk behind it
  Rows *const *rows;
  const char *keys;
  int64_t row_of_keys, size;  // of these, in elements, and bytes of one
  float copied[WIDEST * CHUNK];
} Chunk;

static float largest(const float *x, int64_t count) {
  Floats top = spread(UNSEEN);
  for (int64_t i = 0; i < count; i += LANES) {
    Floats next = *(const Floats *)(x + i);
    top = pick(next > top, next, top);
  }
  float found = top[0];
  for (int lane = 1; lane < LANES; lane++)
    if (top[lane] > found) found = top[lane];
  return found;
}

static int64_t whole_columns(int64_t slots) {
  return (slots + COLUMNS - 1) / COLUMNS * COLUMNS;
}

static int64_t group_of(const Share *s) {
  return s->batch * s->a->groups + s->group;
}

static int64_t token_of(const Share *s, int64_t row) {
  return (s->from + row) % s->a->tokens;
}

static int64_t first_of(const Share *s, int64_t row) {
  const Attention *a = s->a;
  return a->first ? a->first[s->batch * a->tokens + token_of(s, row)] : 0;
}

// Asks for what lies in short pieces far apart, which no processor foresees.
static inline void fetch(const char *piece, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += LINE)
    __builtin_prefetch(piece + i, 0, 2);  // Into the second of its caches.
}

// Keys of a group as floats, in whole columns. Meanwhile the values of the chunk
// and the keys of the next one are fetched, a piece for each row that is copied:
// asked for at once, most are not.
static void copy_keys(Chunk *c, const char *keys, const char *values,
                      int64_t width) {
  int64_t piece = c->count * c->memory->size;
  float *to = c->copied;
  for (int64_t d = 0; d < width; d++, to += whole_columns(c->count)) {
    int64_t at = d * c->memory->slots + c->from;
    fetch(keys + (at + c->count) * c->memory->size, c->next * c->memory->size);
    fetch(values + d * piece, piece);
    memset(to, 0, whole_columns(c->count) * sizeof *to);
    if (c->memory->size == 4)
      memcpy(to, (const float *)keys + at, c->count * sizeof *to);
    else
      for (int64_t i = 0; i < c->count; i++) {
        uint32_t bits = ((const uint16_t *)keys)[at + i];
        bits <<= 16;
        memcpy(to + i, &bits, sizeof bits);
      }
  }
}

static void open_chunk(Chunk *c, const Share *s, const Memory *memory,
                       int64_t from, int64_t slots) {
  int64_t left = slots - from, width = s->a->width;
  c->memory = memory;
  c->from = from;
  c->count = left < CHUNK ? left : CHUNK;
  c->next = left - c->count < CHUNK ? left - c->count : CHUNK;
  int64_t group = group_of(s) * width * memory->slots;
  const char *keys = memory->keys + group * memory->size;
  const char *values = memory->values + (group + from * width) * memory->size;
  if (memory->slots % COLUMNS || memory->slots * memory->size >= PAGE) {
    copy_keys(c, keys, values, width);
    c->rows = from_float_rows;
    c->keys = (const char *)c->copied;
    c->row_of_keys = whole_columns(c->count);
    c->size = sizeof *c->copied;
  } else {
    c->rows = memory->rows;
    c->keys = keys + from * memory->size;
    c->row_of_keys = memory->slots;
    c->size = memory->size;
  }
}

// Scores of the slots of a chunk, y [rows, CHUNK].
static void score(const Share *s, const Chunk *c, float *y) {
  const Attention *a = s->a;
  Strides strides = {WIDEST, c->row_of_keys, CHUNK, COLUMNS};
  for (int64_t slot = 0; slot < c->count; slot += COLUMNS)
    c->rows[s->count - 1](&strides, s->q, c->keys + slot * c->size, y + slot, 0,
                          a->width, false);
  for (int64_t row = 0; row < s->count; row++) {
    float *scores = y + row * CHUNK;
    if (a->cap)
      for (int64_t i = 0; i < c->count; i++)
        scores[i] = a->cap * tanhf(scores[i] / a->cap);
    if (c->memory->bias) {
      int64_t place = group_of(s) * a->heads * a->tokens + s->from + row;
      const float *bias = c->memory->bias + place * c->memory->slots + c->from;
      for (int64_t i = 0; i < c->count; i++) scores[i] += bias[i];
    }
  }
}

// Scores of a chunk of the cache: slots from `first` on are seen, and those
// before `sinks`.
static void score_cache(Share *s, const Chunk *c) {
  int64_t sinks = s->a->sinks > c->from ? s->a->sinks - c->from : 0;
  score(s, c, s->weights);
  for (int64_t row = 0; row < s->count; row++) {
    int64_t hidden = first_of(s, row) - c->from;
    for (int64_t i = sinks; i < hidden && i < c->count; i++)
      s->weights[row * CHUNK + i] = UNSEEN;
  }
}

// Makes weights of the scores of the first places of a chunk. Behind them up to
// whole columns nothing is seen.
static void weigh(Share *s, int64_t count) {
  for (int64_t row = 0; row < s->count; row++) {
    float *weights = s->weights + row * CHUNK;
    float top = largest(weights, whole_columns(count));
    if (top > s->top[row]) {
      float scale = exponential(spread(s->top[row] - top))[0];
      s->top[row] = top;
      s->total[row] *= scale;
      for (int64_t i = 0; i < s->a->width; i++)
        s->value[row * WIDEST + i] *= scale;
    }
    Floats sums = {0};
    for (int64_t i = 0; i < whole_columns(count); i += LANES) {
      Floats *next = (Floats *)(weights + i);
      *next = exponential(*next - s->top[row]);
      sums += *next;
    }
    for (int lane = 0; lane < LANES; lane++) s->total[row] += sums[lane];
  }
}

// Adds values of slots, times weights [rows, CHUNK].
static void add_values(Share *s, const Memory *memory, int64_t from,
                       int64_t count, const float *weights) {
  int64_t width = s->a->width;
  Strides strides = {CHUNK, width, WIDEST, COLUMNS};
  int64_t slot = group_of(s) * memory->slots + from;
  const char *values = memory->values + slot * width * memory->size;
  for (int64_t column = 0; column < width; column += COLUMNS)
    memory->rows[s->count - 1](&strides, weights, values + column * memory->size,
                               s->value + column, 0, count, true);
}

static void attend_to_chunk(Share *s, const Chunk *c) {
  score_cache(s, c);
  weigh(s, c->count);
  add_values(s, c->memory, c->from, c->count, s->weights);
}

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// Slots of the block.
typedef struct {
  int64_t from, to;
} Slots;

static const bool *text_of(const Share *s, int64_t row) {
  int64_t token = s->batch * s->a->tokens + token_of(s, row);
  return s->a->mask + token * s->a->block.slots;
}

// The place in its text of the next slot of the block, of which a row sees it
// where it is `in` the chunk that begins at `start`.
#define EACH_PLACE(s, row, used, start, count)                               \
  const bool *has = text_of(s, row);                                         \
  int64_t place = used, first = first_of(s, row);                            \
  for (int64_t i = 0; i < count; place += has[i], i++)                       \
    if (has[i] && place >= start && place < start + CHUNK &&                 \
        (place >= first || place < (s)->a->sinks))

// Slots that a row sees in the chunk that begins at `start`, the block beginning
// behind `used` slots: no others, if there is a run.
static Slots seen_by(const Share *s, int64_t row, int64_t used, int64_t start) {
  Slots seen = {INT64_MAX, 0};
  if (s->run[row] != SOME) {
    seen.from = larger(larger(start, first_of(s, row)) - used, 0);
    seen.to = smaller(start + CHUNK - used, s->run[row]);
    return seen;
  }
  EACH_PLACE(s, row, used, start, s->a->block.slots) {
    seen.from = smaller(seen.from, i);
    seen.to = i + 1;
  }
  return seen;
}

// Puts scores of slots into the places where they are in the chunk.
static void to_places(Share *s, int64_t used, int64_t start, Slots slots) {
  for (int64_t row = 0; row < s->count; row++) {
    float *weights = s->weights + row * CHUNK, *scores = s->scores + row * CHUNK;
    if (s->run[row] == SOME) {
      EACH_PLACE(s, row, used, start, slots.to)
        if (i >= slots.from) weights[place - start] = scores[i - slots.from];
      continue;
    }
    Slots seen = seen_by(s, row, used, start);
    int64_t from = larger(seen.from, slots.from), to = smaller(seen.to, slots.to);
    if (from < to)
      memcpy(weights + used + from - start, scores + from - slots.from,
             (to - from) * sizeof *scores);
  }
}

// Puts weights of places where the slots are: 0 for those that are not seen.
static void from_places(Share *s, int64_t used, int64_t start, Slots slots) {
  for (int64_t row = 0; row < s->count; row++) {
    float *weights = s->weights + row * CHUNK, *scores = s->scores + row * CHUNK;
    memset(scores, 0, (slots.to - slots.from) * sizeof *scores);
    if (s->run[row] == SOME) {
      EACH_PLACE(s, row, used, start, slots.to)
        if (i >= slots.from) scores[i - slots.from] = weights[place - start];
      continue;
    }
    Slots seen = seen_by(s, row, used, start);
    int64_t from = larger(seen.from, slots.from), to = smaller(seen.to, slots.to);
    if (from < to)
      memcpy(scores + from - slots.from, weights + used + from - start,
             (to - from) * sizeof *scores);
  }
}

// Attends to the chunk that begins at `start`, with the last of `used` slots of
// the cache or none, and behind them with slots of the block.
static void attend_to_both(const Attention *a, Share *s, int64_t shares,
                           int64_t start, int64_t used) {
  Chunk c;
  int64_t cached = larger(used - start, 0), filled = cached;
  Slots all = {a->block.slots, 0};
  for (int64_t i = 0; i < shares; i++)
    for (int64_t row = 0; row < s[i].count; row++) {
      Slots seen = seen_by(s + i, row, used, start);
      if (seen.from >= seen.to) continue;
      all.from = smaller(all.from, seen.from / COLUMNS * COLUMNS);
      all.to = larger(all.to, seen.to);
    }
  if (all.from >= all.to && !cached) return;
  if (cached) open_chunk(&c, s, &a->cache, start, used);
  if (all.to) filled = smaller(CHUNK, used + all.to - start);
  for (int64_t i = 0; i < shares; i++) {
    if (cached) score_cache(s + i, &c);
    for (int64_t row = 0; row < s[i].count; row++)
      for (int64_t k = cached; k < whole_columns(filled); k++)
        s[i].weights[row * CHUNK + k] = UNSEEN;
  }
  for (int64_t from = all.from; from < all.to; from += CHUNK) {
    Slots slots = {from, smaller(from + CHUNK, all.to)};
    open_chunk(&c, s, &a->block, from, all.to);
    for (int64_t i = 0; i < shares; i++) {
      score(s + i, &c, s[i].scores);
      to_places(s + i, used, start, slots);
    }
  }
  for (int64_t i = 0; i < shares; i++) {
    weigh(s + i, filled);
    if (cached) add_values(s + i, &a->cache, start, cached, s[i].weights);
    for (int64_t from = all.from; from < all.to; from += CHUNK) {
      Slots slots = {from, smaller(from + CHUNK, all.to)};
      from_places(s + i, used, start, slots);
      add_values(s + i, &a->block, from, slots.to - from, s[i].scores);
    }
  }
}

static float *row_of(const Share *s, const float *x, int64_t row) {
  const Attention *a = s->a;
  int64_t head = (s->from + row) / a->tokens;
  int64_t token = s->batch * a->tokens + token_of(s, row);
  int64_t place = token * a->groups + s->group;
  return (float *)x + (place * a->heads + head) * a->width;
}

// See `Share.run`.
static int64_t run_of(const Share *s, int64_t row) {
  const Attention *a = s->a;
  const bool *has = text_of(s, row);
  const bool *end = memchr(has, false, a->block.slots);
  int64_t run = end ? end - has : a->block.slots, used = a->length[s->batch];
  if (used < a->sinks && first_of(s, row) > used) return SOME;
  return memchr(has + run, true, a->block.slots - run) ? SOME : run;
}

static void begin(Share *s, const Attention *a, int64_t group, int64_t share) {
  int64_t rows = a->heads * a->tokens;
  s->a = a;
  s->batch = group / a->groups;
  s->group = group % a->groups;
  s->from = share * rows / a->shares;
  s->count = (share + 1) * rows / a->shares - s->from;
  for (int64_t row = 0; row < s->count; row++) {
    s->top[row] = LOWEST;
    s->total[row] = 0;
    s->run[row] = run_of(s, row);
    memset(s->value + row * WIDEST, 0, a->width * sizeof(float));
    memcpy(s->q + row * WIDEST, row_of(s, a->q, row), a->width * sizeof(float));
  }
}

static void end(const Share *s) {
  for (int64_t row = 0; row < s->count; row++) {
    float *y = row_of(s, s->a->y, row);
    // A row that sees nothing has 0.
    float total = s->total[row] < 1e-30f ? 1e-30f : s->total[row];
    for (int64_t d = 0; d < s->a->width; d++)
      y[d] = s->value[row * WIDEST + d] / total;
  }
}

// Some of the shares of a group.
static void attend_together(const Attention *a, int64_t group, int64_t share) {
  Share s[TOGETHER];
  Chunk c;
  int64_t left = a->shares - share, seen = INT64_MAX;
  int64_t count = left < a->together ? left : a->together;
  for (int64_t i = 0; i < count; i++) {
    begin(s + i, a, group, share + i);
    for (int64_t row = 0; row < s[i].count; row++)
      if (first_of(s + i, row) < seen) seen = first_of(s + i, row);
  }
  int64_t slots = a->cache.slots, used = a->length[s->batch], from = 0;
  if (used > slots) used = slots;
  for (; from + CHUNK <= used; from += CHUNK) {
    if (from + CHUNK <= seen && from >= a->sinks) continue;
    open_chunk(&c, s, &a->cache, from, used);
    for (int64_t i = 0; i < count; i++) attend_to_chunk(s + i, &c);
  }
  for (; from < used + a->block.slots; from += CHUNK)
    attend_to_both(a, s, count, from, used);
  for (int64_t i = 0; i < count; i++) end(s + i);
}

static void attend_parts(const void *job, int64_t from, int64_t to) {
  const Attention *a = job;
  int64_t parts = (a->shares + a->together - 1) / a->together;
  for (int64_t i = from; i < to; i++)
    attend_together(a, i / parts, i % parts * a->together);
}

static bool has(const XLA_FFI_Buffer *x, XLA_FFI_DataType type, int64_t rank,
                const int64_t *dims) {
  if (x->dtype != type || x->rank != rank) return false;
  for (int64_t i = 0; i < rank; i++)
    if (x->dims[i] != dims[i]) return false;
  return true;
}

#define HAS(x, type, ...)                                    \
  has(x, XLA_FFI_DataType_##type,                            \
      sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t),    \
      (const int64_t[]){__VA_ARGS__})

// Whether keys and values of a cache or a block are, and their biases.
static bool are_memory(const XLA_FFI_Buffer *keys, const XLA_FFI_Buffer *values,
                       const XLA_FFI_Buffer *bias, const int64_t *q,
                       int64_t slots) {
  int64_t b = q[0], t = q[1], g = q[2], r = q[3], d = q[4];
  bool floats = HAS(keys, F32, b, g, d, slots) && HAS(values, F32, b, g, slots, d);
  bool halves =
      HAS(keys, BF16, b, g, d, slots) && HAS(values, BF16, b, g, slots, d);
  return (floats || halves) &&
         (bias->rank == 1 || HAS(bias, F32, b, g * r, t, slots));
}

static Memory memory_of(const XLA_FFI_Buffer *keys, const XLA_FFI_Buffer *values,
                        const XLA_FFI_Buffer *bias) {
  bool half = keys->dtype == XLA_FFI_DataType_BF16;
  return (Memory){.keys = keys->data,
                  .values = values->data,
                  .rows = half ? from_bfloat16_rows : from_float_rows,
                  .slots = values->dims[2],
                  .size = half ? 2 : 4,
                  .bias = bias->rank == 4 ? bias->data : NULL};
}

EXPORTED XLA_FFI_Error *attend(XLA_FFI_CallFrame *frame) {
  if (told(frame)) return NULL;
  XLA_FFI_Buffer **x = (XLA_FFI_Buffer **)frame->args.args;
  const XLA_FFI_Buffer *q = x[0], *length = x[3], *mask = x[6], *first = x[7];
  const XLA_FFI_Buffer *y = frame->rets.rets[0];
  const float *numbers = x[10]->data;
  if (q->rank != 5 || q->dtype != XLA_FFI_DataType_F32)
    return refuse(frame, "q must be [B, T, G, R, D] float32");
  int64_t b = q->dims[0], t = q->dims[1], g = q->dims[2], d = q->dims[4];
  int64_t slots = x[2]->rank == 4 ? x[2]->dims[2] : 0;
  int64_t block = mask->rank == 3 ? mask->dims[2] : 0;
  if (d % COLUMNS || d > WIDEST || slots % COLUMNS ||
      !are_memory(x[1], x[2], x[8], q->dims, slots) ||
      !are_memory(x[4], x[5], x[9], q->dims, block))
    return refuse(frame,
                  "keys must be [B, G, D, S], values [B, G, S, D], heads of at "
                  "most 256, and heads and slots multiples of 16");
  if (!HAS(length, S32, b) || !HAS(mask, PRED, b, t, block) ||
      (first->rank == 2 && !HAS(first, S32, b, t)))
    return refuse(frame, "length must be [B], mask [B, T, N], first [B, T]");
  Attention a = {.q = q->data,
                 .y = y->data,
                 .cache = memory_of(x[1], x[2], x[8]),
                 .block = memory_of(x[4], x[5], x[9]),
                 .length = length->data,
                 .first = first->rank == 2 ? first->data : NULL,
                 .mask = mask->data,
                 .cap = numbers[0],
                 .sinks = (int64_t)numbers[1],
                 .tokens = t,
                 .groups = g,
                 .heads = q->dims[3],
                 .width = d};
  int64_t rows = a.heads * t, groups = b * g, used = 0;
  for (int64_t i = 0; i < b; i++) used += a.length[i] + block;
  a.shares = (rows + MOST - 1) / MOST;
  a.together = groups * a.shares / (2 * workers());  // so that all have some
  if (a.together > TOGETHER) a.together = TOGETHER;
  if (a.together < 1) a.together = 1;
  int64_t parts = groups * ((a.shares + a.together - 1) / a.together);
  share(attend_parts, &a, parts, 2 * g * rows * used * d <= ALONE ? parts : 1);
  return NULL;
}
