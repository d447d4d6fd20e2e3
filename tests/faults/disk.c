/* Counts every call that changes a folder, and refuses some or ends the process there. Loaded before libc (LD_PRELOAD), so that
   Python's calls and SQLite's are both seen: open, write, fsync, rename, mkdir, unlink, ftruncate, chmod. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static char folder[4096];
static long calls, first, last;
static int refusal, log_to = -1;

/* From now on: the calls numbered `from` to `to` fail with `error`, or with -1 end the process. */
void fault_arm(const char *where, long from, long to, int error, int log)
{
    snprintf(folder, sizeof folder, "%s", where);
    calls = 0, first = from, last = to, refusal = error, log_to = log;
}

static int refused(const char *what, const char *path)
{
    if (!folder[0] || strncmp(path, folder, strlen(folder)))
        return 0;
    calls++;
    if (log_to >= 0) {
        char line[4200];
        int n = snprintf(line, sizeof line, "%s %s\n", what, path + strlen(folder));
        syscall(SYS_write, log_to, line, n);
    }
    if (calls < first || calls > last)
        return 0;
    if (refusal < 0)
        syscall(SYS_kill, getpid(), SIGKILL);
    errno = refusal;
    return 1;
}

static int refused_at(const char *what, int fd)
{
    char link[64], path[4096];
    if (!folder[0])
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (n < 0)
        return 0;
    path[n] = 0;
    return refused(what, path);
}

#define REAL(type, name, ...) ((type (*)(__VA_ARGS__))dlsym(RTLD_NEXT, name))

#define OPEN(name)                                                                      \
    int name(const char *path, int flags, ...)                                          \
    {                                                                                   \
        va_list rest;                                                                   \
        va_start(rest, flags);                                                          \
        int mode = va_arg(rest, int);                                                   \
        va_end(rest);                                                                   \
        return refused("open", path) ? -1 : REAL(int, #name, const char *, int, ...)(path, flags, mode); \
    }
OPEN(open)
OPEN(open64)

#define ON_FILE(type, name, what, parameters, arguments, ...)                           \
    type name parameters { return refused_at(what, fd) ? -1 : REAL(type, #name, __VA_ARGS__) arguments; }
ON_FILE(ssize_t, write, "write", (int fd, const void *data, size_t n), (fd, data, n), int, const void *, size_t)
ON_FILE(ssize_t, pwrite, "write", (int fd, const void *data, size_t n, off_t at), (fd, data, n, at),
        int, const void *, size_t, off_t)
ON_FILE(ssize_t, pwrite64, "write", (int fd, const void *data, size_t n, off64_t at), (fd, data, n, at),
        int, const void *, size_t, off64_t)
ON_FILE(int, fsync, "fsync", (int fd), (fd), int)
ON_FILE(int, fdatasync, "fsync", (int fd), (fd), int)
ON_FILE(int, ftruncate, "truncate", (int fd, off_t n), (fd, n), int, off_t)
ON_FILE(int, ftruncate64, "truncate", (int fd, off64_t n), (fd, n), int, off64_t)

#define ON_PATH(name, what, parameters, arguments, ...)                                 \
    int name parameters { return refused(what, path) ? -1 : REAL(int, #name, __VA_ARGS__) arguments; }
ON_PATH(rename, "rename", (const char *path, const char *to), (path, to), const char *, const char *)
ON_PATH(mkdir, "mkdir", (const char *path, mode_t mode), (path, mode), const char *, mode_t)
ON_PATH(unlink, "unlink", (const char *path), (path), const char *)
ON_PATH(chmod, "chmod", (const char *path, mode_t mode), (path, mode), const char *, mode_t)
