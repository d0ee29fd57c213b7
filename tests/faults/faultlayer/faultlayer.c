/* A layer between one process and its files: counts calls on paths below a directory, and makes the
 * chosen ones fail, fall short, or be the last thing that the process does.
 *
 * Preloaded (LD_PRELOAD); glibc on x86-64 and aarch64. Its environment:
 *
 *     FAULT_ROOT      only calls on paths below this directory count
 *     FAULT_CONTROL   a file of 4096 bytes, mapped, through which a test rules while the process lives
 *     FAULT_LOG       where counted calls are written, one line "number kind path" each
 *
 * The control file holds struct control below. A call counts if the layer is on, its kind is in `kinds`
 * and its path holds `needle`. The counted calls number skip+1 to skip+times meet the action.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

/* The order is known to __init__.py. */
enum kind {
    OPEN_READ, OPEN_WRITE, READ, WRITE, SYNC, RENAME, UNLINK, MKDIR, RMDIR, CHMOD, TRUNCATE, LOCK, STAT,
    ACCESS, MAP, LIST, LINK, UTIME
};
static const char *const names[] = {
    "open_read", "open_write", "read", "write", "sync", "rename", "unlink", "mkdir", "rmdir", "chmod",
    "truncate", "lock", "stat", "access", "map", "list", "link", "utime"
};
enum action { FAIL = 1, KILL_BEFORE, KILL_AFTER, FALL_SHORT };

struct control {
    volatile uint32_t on, kinds, action;
    volatile int32_t error;
    volatile uint64_t skip, times, seen, fired;
    char needle[256];
};

static struct control *control;
static char root[PATH_MAX];
static size_t root_length;
static int log_fd = -1;

static long raw_open(const char *path, int flags)
{
    return syscall(SYS_openat, AT_FDCWD, path, flags | O_CLOEXEC, 0600);
}

__attribute__((constructor)) static void begin(void)
{
    const char *directory = getenv("FAULT_ROOT"), *file = getenv("FAULT_CONTROL"), *log = getenv("FAULT_LOG");
    if (!directory || !file)
        return;
    snprintf(root, sizeof root, "%s", directory);
    root_length = strlen(root);
    long fd = raw_open(file, O_RDWR);
    if (fd < 0)
        return;
    void *found = (void *)syscall(SYS_mmap, 0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    syscall(SYS_close, fd);
    if (log)
        log_fd = (int)raw_open(log, O_WRONLY | O_CREAT | O_APPEND);
    if (found != MAP_FAILED)
        control = found;
}

static int below(const char *path)
{
    return strncmp(path, root, root_length) == 0 && (path[root_length] == '/' || path[root_length] == 0);
}

static void die(void)
{
    syscall(SYS_kill, getpid(), SIGKILL);
    for (;;)
        pause();
}

/* What is to be done with a call: 0 (let it through), FAIL (errno is set), KILL_AFTER or FALL_SHORT. */
static int judge(enum kind kind, const char *path)
{
    char line[PATH_MAX + 64];
    if (!below(path) || !(control->kinds >> kind & 1))
        return 0;
    if (control->needle[0] && !strstr(path + root_length, control->needle))
        return 0;
    uint64_t number = __atomic_add_fetch(&control->seen, 1, __ATOMIC_SEQ_CST);
    if (log_fd >= 0) {
        int length = snprintf(line, sizeof line, "%lu %s %s\n", (unsigned long)number, names[kind], path);
        syscall(SYS_write, log_fd, line, length);
    }
    if (number <= control->skip || number - control->skip > control->times)
        return 0;
    if (control->action == FALL_SHORT && kind != WRITE)
        return 0;
    __atomic_add_fetch(&control->fired, 1, __ATOMIC_SEQ_CST);
    if (control->action == KILL_BEFORE)
        die();
    errno = control->error;
    return (int)control->action;
}

static const char *fd_path(int fd, char *buffer)
{
    char link[40];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    long length = syscall(SYS_readlinkat, AT_FDCWD, link, buffer, PATH_MAX - 1);
    buffer[length < 0 ? 0 : length] = 0;
    return buffer;
}

static const char *at_path(int directory, const char *path, char *buffer)
{
    if (path[0] == '/')
        return path;
    if (directory == AT_FDCWD) {
        if (syscall(SYS_getcwd, buffer, PATH_MAX) < 0)
            buffer[0] = 0;
    } else {
        fd_path(directory, buffer);
    }
    size_t length = strlen(buffer);
    if (path[0])
        snprintf(buffer + length, PATH_MAX - length, "/%s", path);
    return buffer;
}

#define ON (control && control->on)
#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
/* The body of a replacement: judge, call, and die afterwards if that was asked for. */
#define BODY(name, failed, kind, path, ...)                             \
    static __typeof__(&name) next;                                      \
    char buffer[PATH_MAX];                                              \
    int verdict = 0;                                                    \
    (void)buffer;                                                       \
    if (!next)                                                          \
        next = NEXT(name);                                              \
    if (ON && (verdict = judge(kind, path)) == FAIL)                    \
        return failed;                                                  \
    __typeof__(next(__VA_ARGS__)) result = next(__VA_ARGS__);           \
    if (verdict == KILL_AFTER)                                          \
        die();                                                          \
    return result

#define HERE(path) at_path(AT_FDCWD, path, buffer)
#define WRITES(flags) ((flags) & (O_WRONLY | O_RDWR | O_CREAT | O_TRUNC) ? OPEN_WRITE : OPEN_READ)
#define MODE(flags, after)                          \
    mode_t mode = 0;                                \
    if ((flags) & (O_CREAT | __O_TMPFILE)) {        \
        va_list list;                               \
        va_start(list, after);                      \
        mode = va_arg(list, mode_t);                \
        va_end(list);                               \
    }

int open(const char *p, int f, ...) { MODE(f, f) BODY(open, -1, WRITES(f), HERE(p), p, f, mode); }
int open64(const char *p, int f, ...) { MODE(f, f) BODY(open64, -1, WRITES(f), HERE(p), p, f, mode); }
int openat(int d, const char *p, int f, ...) { MODE(f, f) BODY(openat, -1, WRITES(f), at_path(d, p, buffer), d, p, f, mode); }
int openat64(int d, const char *p, int f, ...) { MODE(f, f) BODY(openat64, -1, WRITES(f), at_path(d, p, buffer), d, p, f, mode); }

/* Half of a write is a write too: the caller has to go on. */
#define SHORT(count) (verdict == FALL_SHORT && (count) > 1 ? (count) / 2 : (count))
ssize_t write(int fd, const void *b, size_t n) { BODY(write, -1, WRITE, fd_path(fd, buffer), fd, b, SHORT(n)); }
ssize_t pwrite(int fd, const void *b, size_t n, off_t o) { BODY(pwrite, -1, WRITE, fd_path(fd, buffer), fd, b, SHORT(n), o); }
ssize_t pwrite64(int fd, const void *b, size_t n, off64_t o) { BODY(pwrite64, -1, WRITE, fd_path(fd, buffer), fd, b, SHORT(n), o); }
ssize_t writev(int fd, const struct iovec *v, int n) { BODY(writev, -1, WRITE, fd_path(fd, buffer), fd, v, n); }
ssize_t read(int fd, void *b, size_t n) { BODY(read, -1, READ, fd_path(fd, buffer), fd, b, n); }
ssize_t pread(int fd, void *b, size_t n, off_t o) { BODY(pread, -1, READ, fd_path(fd, buffer), fd, b, n, o); }
ssize_t pread64(int fd, void *b, size_t n, off64_t o) { BODY(pread64, -1, READ, fd_path(fd, buffer), fd, b, n, o); }
int posix_fallocate(int fd, off_t o, off_t n) { BODY(posix_fallocate, errno, WRITE, fd_path(fd, buffer), fd, o, n); }
int posix_fallocate64(int fd, off64_t o, off64_t n) { BODY(posix_fallocate64, errno, WRITE, fd_path(fd, buffer), fd, o, n); }
int fallocate(int fd, int m, off_t o, off_t n) { BODY(fallocate, -1, WRITE, fd_path(fd, buffer), fd, m, o, n); }
int fallocate64(int fd, int m, off64_t o, off64_t n) { BODY(fallocate64, -1, WRITE, fd_path(fd, buffer), fd, m, o, n); }
int fsync(int fd) { BODY(fsync, -1, SYNC, fd_path(fd, buffer), fd); }
int fdatasync(int fd) { BODY(fdatasync, -1, SYNC, fd_path(fd, buffer), fd); }
int ftruncate(int fd, off_t n) { BODY(ftruncate, -1, TRUNCATE, fd_path(fd, buffer), fd, n); }
int ftruncate64(int fd, off64_t n) { BODY(ftruncate64, -1, TRUNCATE, fd_path(fd, buffer), fd, n); }
int fchmod(int fd, mode_t m) { BODY(fchmod, -1, CHMOD, fd_path(fd, buffer), fd, m); }
int chmod(const char *p, mode_t m) { BODY(chmod, -1, CHMOD, HERE(p), p, m); }
int fchmodat(int d, const char *p, mode_t m, int f) { BODY(fchmodat, -1, CHMOD, at_path(d, p, buffer), d, p, m, f); }
int rename(const char *a, const char *b) { BODY(rename, -1, RENAME, HERE(b), a, b); }
int renameat(int d, const char *a, int e, const char *b) { BODY(renameat, -1, RENAME, at_path(e, b, buffer), d, a, e, b); }
int unlink(const char *p) { BODY(unlink, -1, UNLINK, HERE(p), p); }
int unlinkat(int d, const char *p, int f) { BODY(unlinkat, -1, f & AT_REMOVEDIR ? RMDIR : UNLINK, at_path(d, p, buffer), d, p, f); }
int rmdir(const char *p) { BODY(rmdir, -1, RMDIR, HERE(p), p); }
int mkdir(const char *p, mode_t m) { BODY(mkdir, -1, MKDIR, HERE(p), p, m); }
int mkdirat(int d, const char *p, mode_t m) { BODY(mkdirat, -1, MKDIR, at_path(d, p, buffer), d, p, m); }
int link(const char *a, const char *b) { BODY(link, -1, LINK, HERE(b), a, b); }
int symlink(const char *a, const char *b) { BODY(symlink, -1, LINK, HERE(b), a, b); }
int utimensat(int d, const char *p, const struct timespec t[2], int f) { BODY(utimensat, -1, UTIME, at_path(d, p, buffer), d, p, t, f); }
int access(const char *p, int m) { BODY(access, -1, ACCESS, m & W_OK ? HERE(p) : "", p, m); }
int faccessat(int d, const char *p, int m, int f) { BODY(faccessat, -1, ACCESS, m & W_OK ? at_path(d, p, buffer) : "", d, p, m, f); }
int stat(const char *restrict p, struct stat *restrict s) { BODY(stat, -1, STAT, HERE(p), p, s); }
int stat64(const char *restrict p, struct stat64 *restrict s) { BODY(stat64, -1, STAT, HERE(p), p, s); }
int lstat(const char *restrict p, struct stat *restrict s) { BODY(lstat, -1, STAT, HERE(p), p, s); }
int lstat64(const char *restrict p, struct stat64 *restrict s) { BODY(lstat64, -1, STAT, HERE(p), p, s); }
int fstat(int fd, struct stat *s) { BODY(fstat, -1, STAT, fd_path(fd, buffer), fd, s); }
int fstat64(int fd, struct stat64 *s) { BODY(fstat64, -1, STAT, fd_path(fd, buffer), fd, s); }
int flock(int fd, int o);
int flock(int fd, int o) { BODY(flock, -1, LOCK, fd_path(fd, buffer), fd, o); }
DIR *opendir(const char *p) { BODY(opendir, NULL, LIST, HERE(p), p); }
DIR *fdopendir(int fd) { BODY(fdopendir, NULL, LIST, fd_path(fd, buffer), fd); }
void *mmap(void *a, size_t n, int p, int f, int fd, off_t o) { BODY(mmap, MAP_FAILED, MAP, fd < 0 ? "" : fd_path(fd, buffer), a, n, p, f, fd, o); }
void *mmap64(void *a, size_t n, int p, int f, int fd, off64_t o) { BODY(mmap64, MAP_FAILED, MAP, fd < 0 ? "" : fd_path(fd, buffer), a, n, p, f, fd, o); }

#define LOCKS(c) ((c) == F_SETLK || (c) == F_SETLKW || (c) == F_OFD_SETLK || (c) == F_OFD_SETLKW)
#define ARGUMENT(after)                 \
    va_list list;                       \
    va_start(list, after);              \
    void *argument = va_arg(list, void *); \
    va_end(list);
int fcntl(int fd, int c, ...) { ARGUMENT(c) BODY(fcntl, -1, LOCK, LOCKS(c) ? fd_path(fd, buffer) : "", fd, c, argument); }
int fcntl64(int fd, int c, ...);
int fcntl64(int fd, int c, ...) { ARGUMENT(c) BODY(fcntl64, -1, LOCK, LOCKS(c) ? fd_path(fd, buffer) : "", fd, c, argument); }
