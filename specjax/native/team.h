// Threads that share the work of a call.

#ifndef SPECJAX_TEAM_H
#define SPECJAX_TEAM_H

#include <stdint.h>

// What Python calls; nothing else is seen from outside.
#define EXPORTED __attribute__((visibility("default")))

typedef void Part(const void *job, int64_t from, int64_t to);

// Has parts 0 to `parts` of a job done, `at_once` or more at once by one thread
// while there are so many, and returns when all are. Whoever else asks meanwhile
// does its own alone.
void share(Part *part, const void *job, int64_t parts, int64_t at_once);

// Threads that work is shared with, besides the one that asks.
void use_helpers(int count);

// These, and the one that asks.
int workers(void);

#endif
