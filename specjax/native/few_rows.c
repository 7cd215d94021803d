// Few rows times matrices, on all cores of a CPU.
//
//   a weight in blocks of columns   x [R, in]     w [C, in, 16]    y [R, C * 16]
//   a matrix for each of B batches  x [B, R, in]  w [B, in, out]   y [B, R, out]
//
// x and y are float32, w is float32, bfloat16 or int8. Sixteen columns are read
// once, from front to back, and serve up to six or eight rows while they are in
// registers; for more rows a part of them is read again from the innermost
// cache. Every sum adds its inputs in their order, whatever the number of rows,
// so a row has the same bits alone and beside others.

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "xla/ffi/api/c_api.h"

#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX__)
#define LANES 8
#else
#define LANES 4
#endif

enum {
  COLUMNS = 16,  // that are read together: a block
  PARTS = COLUMNS / LANES,
  MOST = LANES < 16 ? 6 : 8,  // rows that a block in registers serves
  SHARE = 64,            // inputs of a block that more rows take in turns
  AHEAD = 64,            // inputs that a block is fetched before it is needed
  GRAB = 64 * 1024,      // bytes of w that a thread takes at once
  ALONE = 64 * 1024,     // products that one thread is faster with
  SPINS = 64,            // turns before a waiting thread looks at the clock
  PATIENCE = 200 * 1000, // nanoseconds that it waits before it sleeps
};

// Keeps a vector in its register: compilers would read it again for every row.
#if defined(__AVX512F__)
#define HOLD(vector) __asm__("" : "+v"(vector))
#elif defined(__x86_64__)
#define HOLD(vector) __asm__("" : "+x"(vector))
#elif defined(__aarch64__)
#define HOLD(vector) __asm__("" : "+w"(vector))
#else
#define HOLD(vector)
#endif

#define VECTOR(type) __attribute__((vector_size(sizeof(type) * LANES), aligned(1)))
typedef float Floats VECTOR(float);
typedef uint32_t Words VECTOR(uint32_t);
typedef uint16_t Halves VECTOR(uint16_t);
typedef int8_t Bytes VECTOR(int8_t);

typedef struct Product Product;
typedef void Rows(const Product *, const float *x, const char *w, float *y,
                  int64_t from, int64_t to);

struct Product {
  const float *x;
  const char *w;
  float *y;
  Rows *const *rows;  // by their number, less one
  int64_t count, inputs, blocks, grab;
  int64_t row_of_w, row_of_y;                // elements from one to the next
  int64_t ahead;                             // elements of w to what is fetched
  int64_t blocks_of_batch;                   // side by side
  int64_t batch_of_x, batch_of_w, batch_of_y;  // elements of a batch
  int64_t size;                              // bytes of an element of w
  atomic_long next, done;                    // blocks
};

// Threads that wait for products. What follows a product is short, so they look
// out for the next one for a while before they sleep: waking takes longer.
static struct {
  Product product;
  atomic_bool open;        // whether there is something to do
  atomic_ulong products;   // so far
  atomic_int inside;       // helpers that look at the product
  atomic_int asleep;
  pthread_mutex_t busy;    // one product at a time
  pthread_mutex_t lock;
  pthread_cond_t woken;
  int wanted, running;     // helpers
} team = {.busy = PTHREAD_MUTEX_INITIALIZER,
          .lock = PTHREAD_MUTEX_INITIALIZER,
          .woken = PTHREAD_COND_INITIALIZER};

static inline Floats from_float(const float *w) { return *(const Floats *)w; }

static inline Floats from_bfloat16(const uint16_t *w) {
  Words wide = __builtin_convertvector(*(const Halves *)w, Words) << 16;
  return (Floats)wide;
}

static inline Floats from_int8(const int8_t *w) {
  return __builtin_convertvector(*(const Bytes *)w, Floats);
}

// What a block gives so many rows, of inputs `from` to `to`.
#define ROWS(count, type, load)                                               \
  static void load##_##count(const Product *p, const float *x,               \
                             const char *block, float *y, int64_t from,      \
                             int64_t to) {                                   \
    const type *w = (const type *)block;                                     \
    int64_t stride = p->row_of_w;                                            \
    Floats sums[count][PARTS] = {0};                                         \
    if (from)                                                                \
      _Pragma("GCC unroll 8") for (int r = 0; r < count; r++)                \
          _Pragma("GCC unroll 4") for (int c = 0; c < PARTS; c++)            \
              sums[r][c] = *(Floats *)(y + r * p->row_of_y + c * LANES);     \
    for (int64_t i = from; i < to; i++) {                                    \
      Floats weights[PARTS];                                                 \
      __builtin_prefetch(w + i * stride + p->ahead);                         \
      _Pragma("GCC unroll 4") for (int c = 0; c < PARTS; c++) {              \
        weights[c] = load(w + i * stride + c * LANES);                       \
        HOLD(weights[c]);                                                    \
      }                                                                      \
      _Pragma("GCC unroll 8") for (int r = 0; r < count; r++)                \
          _Pragma("GCC unroll 4") for (int c = 0; c < PARTS; c++)            \
              sums[r][c] += x[r * p->inputs + i] * weights[c];               \
    }                                                                        \
    _Pragma("GCC unroll 8") for (int r = 0; r < count; r++)                  \
        _Pragma("GCC unroll 4") for (int c = 0; c < PARTS; c++)              \
            *(Floats *)(y + r * p->row_of_y + c * LANES) = sums[r][c];       \
  }

#define ALL_ROWS(type, load)                                            \
  ROWS(1, type, load)                                                   \
  ROWS(2, type, load)                                                   \
  ROWS(3, type, load)                                                   \
  ROWS(4, type, load)                                                   \
  ROWS(5, type, load)                                                   \
  ROWS(6, type, load)                                                   \
  ROWS(7, type, load)                                                   \
  ROWS(8, type, load)                                                   \
  static Rows *const load##_rows[] = {load##_1, load##_2, load##_3,     \
                                      load##_4, load##_5, load##_6,     \
                                      load##_7, load##_8};

ALL_ROWS(float, from_float)
ALL_ROWS(uint16_t, from_bfloat16)
ALL_ROWS(int8_t, from_int8)

static void multiply_block(const Product *p, int64_t block) {
  int64_t batch = block / p->blocks_of_batch;
  int64_t column = block % p->blocks_of_batch * COLUMNS;
  const float *x = p->x + batch * p->batch_of_x;
  const char *w = p->w + (batch * p->batch_of_w + column) * p->size;
  float *y = p->y + batch * p->batch_of_y + column;
  int64_t groups = (p->count + MOST - 1) / MOST;
  int64_t step = groups == 1 ? p->inputs : SHARE;
  for (int64_t from = 0; from < p->inputs; from += step) {
    int64_t to = from + step < p->inputs ? from + step : p->inputs;
    for (int64_t group = 0, row = 0; group < groups; group++) {
      int64_t left = groups - group, rows = (p->count - row + left - 1) / left;
      p->rows[rows - 1](p, x + row * p->inputs, w, y + row * p->row_of_y, from,
                        to);
      row += rows;
    }
  }
}

static void work(Product *p) {
  for (;;) {
    int64_t from = atomic_fetch_add(&p->next, p->grab);
    if (from >= p->blocks) return;
    int64_t to = from + p->grab < p->blocks ? from + p->grab : p->blocks;
    for (int64_t block = from; block < to; block++) multiply_block(p, block);
    atomic_fetch_add(&p->done, to - from);
  }
}

static void rest(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#endif
}

static int64_t nanoseconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000000000LL + now.tv_nsec;
}

// Waits for another product than the last one; returns how many there were.
static unsigned long look_out(unsigned long seen) {
  int64_t begin = nanoseconds();
  for (unsigned long spin = 1; atomic_load(&team.products) == seen; spin++) {
    rest();
    if (spin % SPINS) continue;
    sched_yield();
    if (nanoseconds() - begin < PATIENCE) continue;
    pthread_mutex_lock(&team.lock);
    atomic_fetch_add(&team.asleep, 1);
    while (atomic_load(&team.products) == seen)
      pthread_cond_wait(&team.woken, &team.lock);
    atomic_fetch_sub(&team.asleep, 1);
    pthread_mutex_unlock(&team.lock);
  }
  return atomic_load(&team.products);
}

static void *help(void *unused) {
  for (unsigned long seen = 0;;) {
    seen = look_out(seen);
    atomic_fetch_add(&team.inside, 1);
    if (atomic_load(&team.open)) work(&team.product);
    atomic_fetch_sub(&team.inside, 1);
  }
  return unused;
}

static void call_helpers(void) {
  for (pthread_t thread; team.running < team.wanted; team.running++) {
    if (pthread_create(&thread, NULL, help, NULL)) {
      team.wanted = team.running;
      break;
    }
    pthread_detach(thread);
  }
  atomic_store(&team.open, true);
  atomic_fetch_add(&team.products, 1);
  if (atomic_load(&team.asleep)) {
    pthread_mutex_lock(&team.lock);
    pthread_cond_broadcast(&team.woken);
    pthread_mutex_unlock(&team.lock);
  }
}

static void wait_for_helpers(void) {
  Product *p = &team.product;
  for (long spin = 1; atomic_load(&p->done) < p->blocks; spin++)
    spin % SPINS ? rest() : (void)sched_yield();
  atomic_store(&team.open, false);
  for (long spin = 1; atomic_load(&team.inside); spin++)
    spin % SPINS ? rest() : (void)sched_yield();
}

// Threads that products are shared with, besides the one that asks.
void use_helpers(int count) { team.wanted = count; }

static XLA_FFI_Error *refuse(XLA_FFI_CallFrame *frame, const char *message) {
  XLA_FFI_Error_Create_Args args = {XLA_FFI_Error_Create_Args_STRUCT_SIZE, NULL,
                                    message,
                                    XLA_FFI_Error_Code_INVALID_ARGUMENT};
  return frame->api->XLA_FFI_Error_Create(&args);
}

// Whether XLA only asks what this was compiled for; it is told.
static bool told(XLA_FFI_CallFrame *frame) {
  for (XLA_FFI_Extension_Base *e = frame->extension_start; e; e = e->next)
    if (e->type == XLA_FFI_Extension_Metadata) {
      XLA_FFI_Metadata *facts = ((XLA_FFI_Metadata_Extension *)e)->metadata;
      facts->api_version.major_version = XLA_FFI_API_MAJOR;
      facts->api_version.minor_version = XLA_FFI_API_MINOR;
      return true;
    }
  return false;
}

static void multiply(Product product, XLA_FFI_DataType type) {
  product.size = 4;
  product.rows = from_float_rows;
  if (type == XLA_FFI_DataType_BF16) {
    product.size = 2;
    product.rows = from_bfloat16_rows;
  } else if (type == XLA_FFI_DataType_S8) {
    product.size = 1;
    product.rows = from_int8_rows;
  }
  int64_t bytes_of_block = product.inputs * COLUMNS * product.size;
  product.grab = 1 + GRAB / (bytes_of_block + 1);
  int64_t products = product.count * product.inputs * product.blocks * COLUMNS;
  if (products <= ALONE || !team.wanted || pthread_mutex_trylock(&team.busy)) {
    work(&product);
    return;
  }
  team.product = product;
  call_helpers();
  work(&team.product);
  wait_for_helpers();
  pthread_mutex_unlock(&team.busy);
}

XLA_FFI_Error *few_rows(XLA_FFI_CallFrame *frame) {
  if (told(frame)) return NULL;
  const XLA_FFI_Buffer *x = frame->args.args[0], *w = frame->args.args[1];
  const XLA_FFI_Buffer *y = frame->rets.rets[0];
  if (x->rank != 2 || w->rank != 3 || w->dims[1] != x->dims[1] ||
      w->dims[2] != COLUMNS || x->dtype != XLA_FFI_DataType_F32)
    return refuse(frame, "x must be [R, in] float32 and w [C, in, 16]");
  Product product = {.x = x->data,
                     .w = w->data,
                     .y = y->data,
                     .count = x->dims[0],
                     .inputs = x->dims[1],
                     .blocks = w->dims[0],
                     .row_of_w = COLUMNS,
                     .ahead = AHEAD * COLUMNS,
                     .row_of_y = w->dims[0] * COLUMNS,
                     .blocks_of_batch = 1,
                     .batch_of_w = w->dims[1] * COLUMNS,
                     .batch_of_y = COLUMNS};
  multiply(product, w->dtype);
  return NULL;
}

XLA_FFI_Error *few_rows_of_batches(XLA_FFI_CallFrame *frame) {
  if (told(frame)) return NULL;
  const XLA_FFI_Buffer *x = frame->args.args[0], *w = frame->args.args[1];
  const XLA_FFI_Buffer *y = frame->rets.rets[0];
  if (x->rank != 3 || w->rank != 3 || w->dims[0] != x->dims[0] ||
      w->dims[1] != x->dims[2] || w->dims[2] % COLUMNS ||
      x->dtype != XLA_FFI_DataType_F32)
    return refuse(frame, "x must be [B, R, in] float32 and w [B, in, 16 n]");
  int64_t blocks = w->dims[2] / COLUMNS;
  Product product = {.x = x->data,
                     .w = w->data,
                     .y = y->data,
                     .count = x->dims[1],
                     .inputs = x->dims[2],
                     .blocks = w->dims[0] * blocks,
                     .row_of_w = w->dims[2],
                     .ahead = COLUMNS,  // the block beside this one
                     .row_of_y = w->dims[2],
                     .blocks_of_batch = blocks,
                     .batch_of_x = x->dims[1] * x->dims[2],
                     .batch_of_w = w->dims[1] * w->dims[2],
                     .batch_of_y = x->dims[1] * w->dims[2]};
  multiply(product, w->dtype);
  return NULL;
}
