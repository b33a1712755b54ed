/* Loaded before the C library (LD_PRELOAD): writes under FAULTS_DIRECTORY fail, and the wall clock is put forward, back
 * or stopped, as the file FAULTS_CONTROL says: "ERRNO OFFSET_SECONDS STOPPED". tests/faults/shim.py writes it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

/* Shared with the harness through a mapped file, so that a look costs nothing. */
struct control {
  int error;
  int stopped;
  long long offset_ns;
  long long stopped_at_ns;
  long long failed;
};
static struct control *control;
static const char *directory;

__attribute__((constructor)) static void begin(void) {
  const char *path = getenv("FAULTS_CONTROL");
  directory = getenv("FAULTS_DIRECTORY");
  int fd = path ? syscall(SYS_openat, AT_FDCWD, path, O_RDWR) : -1;
  if (fd >= 0) {
    void *at = mmap(NULL, sizeof(struct control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    control = at == MAP_FAILED ? NULL : at;
    syscall(SYS_close, fd);
  }
}

static int fails(int fd) {
  char link[64], path[PATH_MAX];
  if (!control || !control->error || !directory) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t length = syscall(SYS_readlinkat, AT_FDCWD, link, path, sizeof path - 1);
  if (length < 0) return 0;
  path[length] = 0;
  if (strncmp(path, directory, strlen(directory))) return 0;
  __atomic_add_fetch(&control->failed, 1, __ATOMIC_RELAXED);
  errno = control->error;
  return 1;
}

#define REAL(type, name, ...) \
  static type (*real)(__VA_ARGS__); \
  if (!real) real = (type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

ssize_t write(int fd, const void *from, size_t count) {
  REAL(ssize_t, "write", int, const void *, size_t);
  return fails(fd) ? -1 : real(fd, from, count);
}
ssize_t writev(int fd, const struct iovec *parts, int count) {
  REAL(ssize_t, "writev", int, const struct iovec *, int);
  return fails(fd) ? -1 : real(fd, parts, count);
}
ssize_t pwrite(int fd, const void *from, size_t count, off_t at) {
  REAL(ssize_t, "pwrite", int, const void *, size_t, off_t);
  return fails(fd) ? -1 : real(fd, from, count, at);
}
ssize_t pwrite64(int fd, const void *from, size_t count, off64_t at) {
  REAL(ssize_t, "pwrite64", int, const void *, size_t, off64_t);
  return fails(fd) ? -1 : real(fd, from, count, at);
}
int ftruncate(int fd, off_t length) {
  REAL(int, "ftruncate", int, off_t);
  return fails(fd) ? -1 : real(fd, length);
}
int ftruncate64(int fd, off64_t length) {
  REAL(int, "ftruncate64", int, off64_t);
  return fails(fd) ? -1 : real(fd, length);
}
int fallocate(int fd, int mode, off_t at, off_t length) {
  REAL(int, "fallocate", int, int, off_t, off_t);
  return fails(fd) ? -1 : real(fd, mode, at, length);
}
int fsync(int fd) {
  REAL(int, "fsync", int);
  return fails(fd) ? -1 : real(fd);
}
int fdatasync(int fd) {
  REAL(int, "fdatasync", int);
  return fails(fd) ? -1 : real(fd);
}

int clock_gettime(clockid_t which, struct timespec *at) {
  int result = syscall(SYS_clock_gettime, which, at);
  if (result || !control || (which != CLOCK_REALTIME && which != CLOCK_REALTIME_COARSE)) return result;
  long long now = at->tv_sec * 1000000000LL + at->tv_nsec;
  if (control->stopped) now = control->stopped_at_ns;
  now += control->offset_ns;
  at->tv_sec = now / 1000000000LL;
  at->tv_nsec = now % 1000000000LL;
  return 0;
}
int gettimeofday(struct timeval *at, void *zone) {
  (void)zone;
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  at->tv_sec = now.tv_sec;
  at->tv_usec = now.tv_nsec / 1000;
  return 0;
}
time_t time(time_t *at) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (at) *at = now.tv_sec;
  return now.tv_sec;
}
