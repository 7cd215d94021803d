// Threads that wait for work. What follows a product is short, so they look out
// for the next one for a while before they sleep: waking takes longer.

#include "team.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <time.h>

enum {
  SPINS = 64,             // turns before a waiting thread looks at the clock
  PATIENCE = 200 * 1000,  // nanoseconds that it waits before it sleeps
};

static struct {
  Part *part;
  const void *job;
  int64_t parts, at_once;
  _Atomic int64_t next, done;  // parts
  atomic_bool open;        // whether there is something to do
  atomic_ulong jobs;       // so far
  atomic_int inside;       // helpers that look at the job
  atomic_int asleep;
  pthread_mutex_t busy;    // one job at a time
  pthread_mutex_t lock;
  pthread_cond_t woken;
  atomic_int wanted;       // helpers
  int running;
} team = {.busy = PTHREAD_MUTEX_INITIALIZER,
          .lock = PTHREAD_MUTEX_INITIALIZER,
          .woken = PTHREAD_COND_INITIALIZER};

// A thread that reads neighbouring parts is faster than threads that take them in
// turns. So a thread takes many of the parts that are left, and few at the end,
// where all threads are to finish together.
static void work(void) {
  int64_t from = atomic_load(&team.next);
  for (;;) {
    int64_t left = team.parts - from;
    if (left <= 0) return;
    int64_t taken = left / (2 * workers());
    if (taken < team.at_once) taken = team.at_once;
    if (taken > left) taken = left;
    if (!atomic_compare_exchange_weak(&team.next, &from, from + taken)) continue;
    team.part(team.job, from, from + taken);
    atomic_fetch_add(&team.done, taken);
    from = atomic_load(&team.next);
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

// Waits for another job than the last one; returns how many there were.
static unsigned long look_out(unsigned long seen) {
  int64_t begin = nanoseconds();
  for (unsigned long spin = 1; atomic_load(&team.jobs) == seen; spin++) {
    rest();
    if (spin % SPINS) continue;
    sched_yield();
    if (nanoseconds() - begin < PATIENCE) continue;
    pthread_mutex_lock(&team.lock);
    atomic_fetch_add(&team.asleep, 1);
    while (atomic_load(&team.jobs) == seen)
      pthread_cond_wait(&team.woken, &team.lock);
    atomic_fetch_sub(&team.asleep, 1);
    pthread_mutex_unlock(&team.lock);
  }
  return atomic_load(&team.jobs);
}

static void *help(void *unused) {
  for (unsigned long seen = 0;;) {
    seen = look_out(seen);
    atomic_fetch_add(&team.inside, 1);
    if (atomic_load(&team.open)) work();
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
  atomic_fetch_add(&team.jobs, 1);
  if (atomic_load(&team.asleep)) {
    pthread_mutex_lock(&team.lock);
    pthread_cond_broadcast(&team.woken);
    pthread_mutex_unlock(&team.lock);
  }
}

static void wait_for_helpers(void) {
  for (long spin = 1; atomic_load(&team.done) < team.parts; spin++)
    spin % SPINS ? rest() : (void)sched_yield();
  atomic_store(&team.open, false);
  for (long spin = 1; atomic_load(&team.inside); spin++)
    spin % SPINS ? rest() : (void)sched_yield();
}

void share(Part *part, const void *job, int64_t parts, int64_t at_once) {
  if (parts <= at_once || !team.wanted || pthread_mutex_trylock(&team.busy)) {
    part(job, 0, parts);
    return;
  }
  team.part = part;
  team.job = job;
  team.parts = parts;
  team.at_once = at_once;
  atomic_store(&team.next, 0);
  atomic_store(&team.done, 0);
  call_helpers();
  work();
  wait_for_helpers();
  pthread_mutex_unlock(&team.busy);
}

EXPORTED void use_helpers(int count) { team.wanted = count; }

int workers(void) { return team.wanted + 1; }
