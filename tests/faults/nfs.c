/* A network file system's habits, for whoever preloads this: cc -shared -fPIC nfs.c -o nfs.so -ldl
 *
 * Nothing changes until nfs_arm(root, fault, at, seed) is called; then, below `root`:
 *   always    a removed file goes on as .nfs…, there are no locks, times of change are whole seconds
 *   VANISH    a rename takes the old name away first; the process is killed in between (at > 0)
 *   RESENT    the answer to a call was lost and it is sent again: done, and "no such file" or "exists"
 *   LATE      fsync and close tell of an error: what was written since the last good sync is gone
 *   STALE     a reader elsewhere: names not seen yet or still seen, shorter files, pages missing, ESTALE
 * `at` is the number of the call that goes wrong, 0 for every third. nfs_fired() counts them.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { OFF, VANISH, RESENT, LATE, STALE };
enum { FDS = 4096 };

static const char *root = "";
static int fault, at, calls, fired, names, mine[FDS], growing[FDS];
static unsigned seed;
static off_t synced[FDS], seen[FDS];

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

void nfs_arm(const char *path, int what, int number, unsigned start)
{
    root = strdup(path);
    fault = what, at = number, seed = start, calls = fired = 0;
}

int nfs_fired(void) { return fired; }

static int below(const char *path) { return fault && !strncmp(path, root, strlen(root)); }

static int ours(int fd) { return fault && fd >= 0 && fd < FDS && mine[fd]; }

/* Whether this call of those that can go wrong does. */
static int wrong(int kind)
{
    if (fault != kind)
        return 0;
    int number = __sync_add_and_fetch(&calls, 1);
    int now = at ? number == at : number % 3 == 0;
    fired += now;
    return now;
}

static int chance(int in) { return fault == STALE && rand_r(&seed) % in == 0 && ++fired; }

static int fail(int code)
{
    errno = code;
    return -1;
}

/* The path of a name below an open folder. */
static const char *whole(int folder, const char *path, char *to)
{
    char link[64];
    if (path[0] == '/' || folder == AT_FDCWD)
        return path;
    snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
    ssize_t length = readlink(link, to, 2048);
    if (length < 0)
        return path;
    snprintf(to + length, 2048, "/%s", path);
    return to;
}

/* The name under which a removed file goes on: with its old name behind it, for `older`. */
static const char *silly(const char *path, int number)
{
    static __thread char kept[4096];
    const char *name = strrchr(path, '/') + 1;
    snprintf(kept, sizeof kept, "%.*s.nfs%s%08d", (int)(name - path), path, name, number);
    return kept;
}

static const char *kept(const char *path) { return silly(path, __sync_add_and_fetch(&names, 1)); }

/* A file that was removed, as a client with old attributes opens it. */
static int older(const char *path, int flags)
{
    for (int number = 1 + (int)(rand_r(&seed) % 60); number > 0; number--) {
        int fd = REAL(open64)(silly(path, number), flags);
        if (fd >= 0)
            return fd;
    }
    return -1;
}

int open64(const char *path, int flags, ...)
{
    va_list rest;
    va_start(rest, flags);
    int mode = va_arg(rest, int), fd = -1;
    va_end(rest);
    if (!below(path))
        return REAL(open64)(path, flags, mode);
    if (!(flags & (O_CREAT | O_DIRECTORY))) {
        if (chance(12))
            return fail(rand_r(&seed) % 2 ? ENOENT : ESTALE);
        if (chance(4))
            fd = older(path, flags);
    }
    if (fd < 0)
        fd = REAL(open64)(path, flags, mode);
    if (fd >= 0 && fd < FDS) {
        struct stat64 facts;
        mine[fd] = REAL(fstat64)(fd, &facts) == 0 && S_ISREG(facts.st_mode);
        synced[fd] = facts.st_size, seen[fd] = -1;
        growing[fd] = strstr(path, ".arrows") || strstr(path, ".jsonl");
        if (mine[fd] && growing[fd] && chance(2))
            seen[fd] = facts.st_size ? rand_r(&seed) % facts.st_size : 0;
    }
    if (fd >= 0 && flags & O_EXCL && wrong(RESENT)) {
        close(fd);
        return fail(EEXIST);
    }
    return fd;
}

int open(const char *path, int flags, ...)
{
    va_list rest;
    va_start(rest, flags);
    int mode = va_arg(rest, int);
    va_end(rest);
    return open64(path, flags, mode);
}

int openat64(int folder, const char *path, int flags, ...)
{
    va_list rest;
    va_start(rest, flags);
    int mode = va_arg(rest, int);
    va_end(rest);
    char to[4096];
    return open64(whole(folder, path, to), flags, mode);
}

/* What was written since the last good sync is dropped; the file ends before it. */
static int late(int fd)
{
    struct stat64 facts;
    int writes = (REAL(fcntl64)(fd, F_GETFL) & O_ACCMODE) != O_RDONLY;
    if (!writes || REAL(fstat64)(fd, &facts) || facts.st_size == synced[fd])
        return 0;
    if (wrong(LATE) && !ftruncate64(fd, synced[fd]))
        return fail(at % 2 ? EIO : ENOSPC);
    synced[fd] = facts.st_size;
    return 0;
}

int fsync(int fd) { return ours(fd) && late(fd) ? -1 : REAL(fsync)(fd); }

int close(int fd)
{
    int bad = 0, code = 0;
    if (ours(fd)) {
        bad = late(fd), code = errno;
        mine[fd] = 0;
    }
    int done = REAL(close)(fd);
    return bad ? fail(code) : done;
}

int rename(const char *from, const char *to)
{
    char beside[4096];
    if (below(to) && fault == VANISH && !access(from, F_OK)) {
        snprintf(beside, sizeof beside, "%s", kept(to));
        REAL(rename)(from, beside);
        if (wrong(VANISH) && at)
            kill(getpid(), SIGKILL);
        usleep(500);
        from = beside;
    }
    int done = REAL(rename)(from, to);
    return !done && below(to) && wrong(RESENT) ? fail(ENOENT) : done;
}

int renameat(int source, const char *from, int target, const char *to)
{
    char one[4096], other[4096];
    return rename(whole(source, from, one), whole(target, to, other));
}

int unlink(const char *path)
{
    if (!below(path))
        return REAL(unlink)(path);
    int done = REAL(rename)(path, kept(path));
    return !done && wrong(RESENT) ? fail(ENOENT) : done;
}

int unlinkat(int folder, const char *path, int flags)
{
    char to[4096];
    return flags ? REAL(unlinkat)(folder, path, flags) : unlink(whole(folder, path, to));
}

int mkdir(const char *path, mode_t mode)
{
    int done = REAL(mkdir)(path, mode);
    return !done && below(path) && wrong(RESENT) ? fail(EEXIST) : done;
}

int mkdirat(int folder, const char *path, mode_t mode)
{
    char to[4096];
    return mkdir(whole(folder, path, to), mode);
}

int link(const char *from, const char *to)
{
    int done = REAL(link)(from, to);
    return !done && below(to) && wrong(RESENT) ? fail(EEXIST) : done;
}

int fcntl64(int fd, int command, ...)
{
    va_list rest;
    va_start(rest, command);
    void *argument = va_arg(rest, void *);
    va_end(rest);
    if (ours(fd) && (command == F_SETLK || command == F_OFD_SETLK))
        return fail(ENOLCK);
    return REAL(fcntl64)(fd, command, argument);
}

int flock(int fd, int operation)
{
    return ours(fd) ? fail(ENOLCK) : REAL(flock)(fd, operation);
}

/* -- what a reader elsewhere sees -------------------------------------------------------------- */

ssize_t pread64(int fd, void *to, size_t length, off64_t offset)
{
    if (!ours(fd))
        return REAL(pread64)(fd, to, length, offset);
    if (chance(40))
        return fail(ESTALE);
    if (seen[fd] >= 0 && (off64_t)(offset + length) > seen[fd]) {
        length = offset < seen[fd] ? seen[fd] - offset : 0;
        seen[fd] = rand_r(&seed) % 4 ? seen[fd] : -1; /* its attributes are asked for anew */
    }
    ssize_t got = REAL(pread64)(fd, to, length, offset);
    if (got > 8192 && growing[fd] && chance(8)) /* pages come to the server in any order */
        memset((char *)to + got - 8192, 0, 4096);
    return got;
}

ssize_t pread(int fd, void *to, size_t length, off_t offset) { return pread64(fd, to, length, offset); }

ssize_t read(int fd, void *to, size_t length)
{
    if (!ours(fd) || fault != STALE)
        return REAL(read)(fd, to, length);
    off64_t offset = lseek64(fd, 0, SEEK_CUR);
    ssize_t got = pread64(fd, to, length, offset);
    lseek64(fd, offset + (got > 0 ? got : 0), SEEK_SET);
    return got;
}

struct dirent64 *readdir64(DIR *folder)
{
    struct dirent64 *entry = REAL(readdir64)(folder);
    while (entry && chance(16))
        entry = REAL(readdir64)(folder);
    return entry;
}

struct dirent *readdir(DIR *folder) { return (struct dirent *)readdir64(folder); }

static int coarse(int done, struct stat64 *facts)
{
    if (!done && fault)
        facts->st_mtim.tv_nsec = facts->st_ctim.tv_nsec = 0;
    return done;
}

int fstat64(int fd, struct stat64 *facts)
{
    int done = coarse(REAL(fstat64)(fd, facts), facts);
    if (!done && ours(fd) && seen[fd] >= 0 && seen[fd] < facts->st_size)
        facts->st_size = seen[fd];
    return done;
}

int stat64(const char *path, struct stat64 *facts)
{
    return below(path) && chance(30) ? fail(ESTALE) : coarse(REAL(stat64)(path, facts), facts);
}

int lstat64(const char *path, struct stat64 *facts)
{
    return below(path) && chance(30) ? fail(ESTALE) : coarse(REAL(lstat64)(path, facts), facts);
}

int fstatat64(int fd, const char *path, struct stat64 *facts, int flags)
{
    int done = REAL(fstatat64)(fd, path, facts, flags);
    return below(path) && chance(30) ? fail(ESTALE) : coarse(done, facts);
}

/* libarrow is linked with the names of an older C library. */
int __fxstat(int version, int fd, struct stat *facts) { return fstat64(fd, (struct stat64 *)facts); }

int __fxstat64(int version, int fd, struct stat64 *facts) { return fstat64(fd, facts); }

int __xstat(int version, const char *path, struct stat *facts)
{
    return stat64(path, (struct stat64 *)facts);
}

int __xstat64(int version, const char *path, struct stat64 *facts) { return stat64(path, facts); }

int __lxstat(int version, const char *path, struct stat *facts)
{
    return lstat64(path, (struct stat64 *)facts);
}
