// The exponential of vectors, and what it is made of.

#ifndef SPECJAX_EXPONENTIAL_H
#define SPECJAX_EXPONENTIAL_H

#include "rows.h"

static const float LEAST = -87;  // of which the exponential is not 0

static inline Floats pick(Ints where, Floats x, Floats otherwise) {
  return (Floats)((where & (Ints)x) | (~where & (Ints)otherwise));
}

// exp(x) of x <= 0: 2^n exp(r), where the rest of the series of exp(r) is below
// 2^-27 of it.
static inline Floats exponential(Floats x) {
  const Floats rounder = spread(12582912);  // 3 * 2^22: behind it are whole numbers
  Floats shifted = x * 1.44269504f + rounder, n = shifted - rounder;
  Floats r = x - n * 0.693359375f + n * 2.12194440e-4f;  // ln 2 in two parts
  Floats sum = spread(1.f / 5040);
  sum = sum * r + 1.f / 720;
  sum = sum * r + 1.f / 120;
  sum = sum * r + 1.f / 24;
  sum = sum * r + 1.f / 6;
  sum = sum * r + 0.5f;
  sum = sum * r + 1;
  sum = sum * r + 1;
  Floats whole = (Floats)((Ints)sum + ((Ints)shifted << 23));
  // What is no number stays so, whatever its bits.
  return pick(x < spread(LEAST), spread(0), pick(x == x, whole, x));
}

#endif
