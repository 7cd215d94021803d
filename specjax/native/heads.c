// Queries, keys and values from the product that makes them all.
//
//   qkv [B, T, G, R + 2, D]   sine and cosine [B, T, F]
//   q [B, T, G, R, D]         k [B, G, D, T]             v [B, G, T, D]
//
// The first 2 F entries of queries and keys are turned by their positions (Su et
// al., arXiv:2104.09864), halves as in Llama, and queries are scaled.

#include <string.h>

#include "rows.h"

EXPORTED XLA_FFI_Error *heads(XLA_FFI_CallFrame *frame) {
  if (told(frame)) return NULL;
  const XLA_FFI_Buffer *qkv = frame->args.args[0], *sine = frame->args.args[1];
  const XLA_FFI_Buffer *cosine = frame->args.args[2], *k = frame->rets.rets[1];
  if (qkv->dtype != XLA_FFI_DataType_F32 || sine->dtype != qkv->dtype ||
      cosine->dtype != qkv->dtype || qkv->rank != 5 || qkv->dims[3] < 3 || sine->rank != 3 ||
      sine->dims[0] != qkv->dims[0] || sine->dims[1] != qkv->dims[1] ||
      2 * sine->dims[2] > qkv->dims[4] || k->rank != 4)
    return refuse(frame, "qkv must be [B, T, G, R + 2, D], sine [B, T, F]");
  int64_t batch = qkv->dims[0], tokens = qkv->dims[1], groups = qkv->dims[2];
  int64_t parts = qkv->dims[3], width = qkv->dims[4], half = sine->dims[2];
  float scale = *(const float *)((XLA_FFI_Buffer *)frame->args.args[3])->data;
  const float *from = qkv->data;
  float *q = ((XLA_FFI_Buffer *)frame->rets.rets[0])->data, *keys = k->data;
  float *values = ((XLA_FFI_Buffer *)frame->rets.rets[2])->data;
  for (int64_t token = 0; token < batch * tokens; token++) {
    const float *sin = (const float *)sine->data + token * half;
    const float *cos = (const float *)cosine->data + token * half;
    int64_t t = token % tokens, row = token / tokens * groups;
    for (int64_t group = 0; group < groups; group++, row++) {
      float turned[width];
      for (int64_t part = 0; part < parts - 1; part++, from += width) {
        float *to = part < parts - 2 ? q : turned;
        for (int64_t i = 0; i < half; i++) {
          to[i] = from[i] * cos[i] - from[half + i] * sin[i];
          to[half + i] = from[half + i] * cos[i] + from[i] * sin[i];
        }
        for (int64_t i = 2 * half; i < width; i++) to[i] = from[i];
        if (to == turned) {
          for (int64_t i = 0; i < width; i++)
            keys[(row * width + i) * tokens + t] = turned[i];
        } else {
          for (int64_t i = 0; i < width; i++) q[i] *= scale;
          q += width;
        }
      }
      memcpy(values + (row * tokens + t) * width, from, width * sizeof *from);
      from += width;
    }
  }
  return NULL;
}
