/* A network file system's habits, for whoever preloads this: cc -shared -fPIC nfs.c -o nfs.so -ldl
 *
 * Nothing changes until nfs_arm(root, fault, at, seed) is called; then, below `root`:
 *   always    a removed file goes on as .nfs…, there are no locks, times of change are whole seconds
 *   VANISH    a rename over a file takes that away first; the process is killed in between (at > 0)
 *   RESENT    the answer to a call was lost and it is sent again: done, and "no such file" or "exists"
 *   LATE      fsync and close tell of an error: what was written since the last good sync is gone
 *   STALE     a reader elsewhere: names not seen yet or any more, older files, shorter files, ESTALE
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
static int fault, at, calls, fired, names, mine[FDS], journal[FDS];
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

/* The name under which a removed file goes on: with its old name behind it, for `older`. */
static const char *silly(const char *path, int number)
{
    static __thread char kept[4096];
    const char *name = strrchr(path, '/') + 1;
    snprintf(kept, sizeof kept, "%.*s.nfs%s%08d", (int)(name - path), path, name, number);
    return kept;
}

static const char *kept(const char *path) { return silly(path, __sync_add_and_fetch(&names, 1)); }

/* A version of this file that was replaced, as a client with old attributes opens it. */
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
        journal[fd] = strstr(path, ".gwj") != NULL;
        if (mine[fd] && journal[fd] && chance(2))
            seen[fd] = facts.st_size ? rand_r(&seed) % facts.st_size : 0;
    }
    if (fd >= 0 && flags & O_EXCL && wrong(RESENT)) {
        close(fd);
        return fail(EEXIST);
    }
    return fd;
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
    struct stat64 facts;
    if (below(to) && fault == VANISH && !REAL(stat64)(to, &facts)) {
        REAL(rename)(to, kept(to));
        if (wrong(VANISH) && at)
            kill(getpid(), SIGKILL);
        usleep(500);
    } else if (below(to)) {
        REAL(link)(to, kept(to)); /* somebody elsewhere still sees it */
    }
    int done = REAL(rename)(from, to);
    return !done && below(to) && wrong(RESENT) ? fail(ENOENT) : done;
}

int unlink(const char *path)
{
    if (!below(path))
        return REAL(unlink)(path);
    int done = REAL(rename)(path, kept(path));
    return !done && wrong(RESENT) ? fail(ENOENT) : done;
}

int mkdir(const char *path, mode_t mode)
{
    int done = REAL(mkdir)(path, mode);
    return !done && below(path) && wrong(RESENT) ? fail(EEXIST) : done;
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
    if (got > 8192 && journal[fd] && chance(8)) /* pages come to the server in any order */
        memset((char *)to + got - 8192, 0, 4096);
    return got;
}

struct dirent64 *readdir64(DIR *folder)
{
    struct dirent64 *entry = REAL(readdir64)(folder);
    while (entry && chance(16))
        entry = REAL(readdir64)(folder);
    return entry;
}

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
