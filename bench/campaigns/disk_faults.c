/* Preload shim: requests to files below one folder fail, one by one.
 *
 * disk_faults_arm(kind, number, error) makes the number-th request of a kind from now on, and all
 * after it, fail with errno `error`; kinds are listed in `enum kind`. Requests are counted from the
 * last call, whether they fail or not; disk_faults_count() returns how many there were.
 * The folder is the environment variable DISK_FAULTS.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum kind { READ, WRITE, SYNC, RESERVE };

static atomic_int armed = -1, first, count, failure;

void disk_faults_arm(int kind, int number, int error)
{
    armed = -1;
    first = number;
    count = 0;
    failure = error;
    armed = kind;
}

int disk_faults_count(void) { return count; }

/* Counts one request, and returns the error that it fails with, or 0. */
static int fault(enum kind kind, int fd)
{
    static const char *folder;
    char link[64], path[4096];
    if (armed != (int)kind)
        return 0;
    if (folder == NULL && (folder = getenv("DISK_FAULTS")) == NULL)
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0)
        return 0;
    path[length] = 0;
    if (strncmp(path, folder, strlen(folder)) != 0)
        return 0;
    return atomic_fetch_add(&count, 1) + 1 >= first ? failure : 0;
}

#define FAIL_OR_CALL(kind, type, name, parameters, arguments)         \
    type name parameters                                               \
    {                                                                  \
        static type(*next) parameters;                                 \
        if (next == NULL)                                              \
            next = (type(*) parameters)dlsym(RTLD_NEXT, #name);        \
        int error = fault(kind, fd);                                   \
        if (error != 0) {                                              \
            errno = error;                                             \
            return -1;                                                 \
        }                                                              \
        return next arguments;                                         \
    }
#define AT (int fd, void *data, size_t size, off64_t offset)
#define AT_CONST (int fd, const void *data, size_t size, off64_t offset)
#define SPANS (int fd, const struct iovec *spans, int number, off64_t offset)
#define SPANS2 (int fd, const struct iovec *spans, int number, off64_t offset, int flags)

FAIL_OR_CALL(READ, ssize_t, read, (int fd, void *data, size_t size), (fd, data, size))
FAIL_OR_CALL(READ, ssize_t, pread64, AT, (fd, data, size, offset))
FAIL_OR_CALL(READ, ssize_t, preadv64, SPANS, (fd, spans, number, offset))
FAIL_OR_CALL(READ, ssize_t, preadv64v2, SPANS2, (fd, spans, number, offset, flags))
FAIL_OR_CALL(WRITE, ssize_t, write, (int fd, const void *data, size_t size), (fd, data, size))
FAIL_OR_CALL(WRITE, ssize_t, pwrite64, AT_CONST, (fd, data, size, offset))
FAIL_OR_CALL(WRITE, ssize_t, pwritev64, SPANS, (fd, spans, number, offset))
FAIL_OR_CALL(WRITE, ssize_t, pwritev64v2, SPANS2, (fd, spans, number, offset, flags))
FAIL_OR_CALL(SYNC, int, fsync, (int fd), (fd))
FAIL_OR_CALL(SYNC, int, fdatasync, (int fd), (fd))
FAIL_OR_CALL(RESERVE, int, ftruncate64, (int fd, off64_t size), (fd, size))

int posix_fallocate64(int fd, off64_t offset, off64_t size)
{
    static int (*next)(int, off64_t, off64_t);
    if (next == NULL)
        next = (int (*)(int, off64_t, off64_t))dlsym(RTLD_NEXT, "posix_fallocate64");
    int error = fault(RESERVE, fd);
    return error != 0 ? error : next(fd, offset, size);
}
