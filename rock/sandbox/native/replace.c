/* Another root directory in place of the present one, for every process of a mount namespace.
 *
 * The new root is a mount of its own (an overlay, see layers.c). First it gets everything that is mounted
 * below the present one, in the same places (take_mounts, furnish); that may be done ahead, and in another
 * namespace. Then it is put on top of the present one and takes its place by pivot_root, which takes the
 * processes with it (put_root). What was writable beside the root is made anew or made read-only: /dev/shm
 * is an empty tmpfs, /dev itself can no longer be written to.
 *
 * Paths below the new root are walked without following links: its content may be an agent's.
 */
#define _GNU_SOURCE
#include "replace.h"

#include "calls.h"
#include "files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MAX_TABLE_BYTES (1024 * 1024)
#define SHM_OPTIONS "mode=1777,size=64m"

struct mount_entry {
    unsigned id, parent;
    char *path;
};

static char *read_table(int fd) {
    char *text = malloc(MAX_TABLE_BYTES + 1);
    size_t size = 0;
    ssize_t got;
    if (!text) return NULL;
    lseek(fd, 0, SEEK_SET);
    while (size < MAX_TABLE_BYTES && (got = read(fd, text + size, MAX_TABLE_BYTES - size)) > 0)
        size += (size_t)got;
    text[size] = 0;
    return text;
}

/* The kernel writes a space, tab, newline or backslash as a backslash and three octal digits. */
static void unescape(char *text) {
    char *out = text;
    while (*text) {
        if (text[0] == '\\' && text[1] && text[2] && text[3]) {
            *out++ = (char)((text[1] - '0') * 64 + (text[2] - '0') * 8 + (text[3] - '0'));
            text += 4;
        } else {
            *out++ = *text++;
        }
    }
    *out = 0;
}

/* Lines of mountinfo: id, parent id, device, root, mount point, ... */
static size_t parse_table(char *text, struct mount_entry *entries) {
    size_t count = 0;
    for (char *line; count < MAX_MOUNTS && (line = strsep(&text, "\n"));) {
        char *fields[5];
        int found = 0;
        while (found < 5 && line) fields[found++] = strsep(&line, " ");
        if (found < 5) continue;
        unescape(fields[4]);
        entries[count++] = (struct mount_entry){(unsigned)strtoul(fields[0], NULL, 10),
                                                (unsigned)strtoul(fields[1], NULL, 10), fields[4]};
    }
    return count;
}

/* Opens the place `path` (absolute) below `root`, making what is missing; no link is followed. */
static int open_place(int root, const char *path, int directory) {
    char *copy = strdup(path), *rest = copy, *name;
    int fd = copy ? dup(root) : -1;
    while (fd >= 0 && (name = strsep(&rest, "/"))) {
        if (!usable_name(name)) continue;
        int last = !rest || !rest[strspn(rest, "/")], next = -1;
        if (!last || directory) {
            mkdirat(fd, name, 0755);
            next = openat(fd, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        } else {
            int made = openat(fd, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
            if (made >= 0) close(made);
            next = openat(fd, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
        }
        int error = errno;
        close(fd);
        errno = error;
        fd = next;
    }
    free(copy);
    return fd;
}

static int put_mount(int root, const struct taken_mount *mount) {
    struct stat info;
    int place = -1;
    if (fstat(mount->tree, &info) == 0) place = open_place(root, mount->path, S_ISDIR(info.st_mode));
    int failed = place < 0 || (int)syscall(CALL_MOVE_MOUNT, mount->tree, "", place, "",
                                           MOVE_FROM_EMPTY_PATH | MOVE_TO_EMPTY_PATH);
    int error = errno;
    if (place >= 0) close(place);
    errno = error;
    return failed ? -1 : 0;
}

/* In the new root, which is the working directory. */
static int renew_dev(void) {
    struct mount_attributes read_only = {.set = MOUNT_ATTR_RDONLY};
    umount2("dev/shm", MNT_DETACH | UMOUNT_NOFOLLOW); /* the old one, where it is a mount */
    if (mount("rock", "dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, SHM_OPTIONS)) return -1;
    return (int)syscall(CALL_MOUNT_SETATTR, AT_FDCWD, "dev", AT_SYMLINK_NOFOLLOW, &read_only,
                        sizeof read_only);
}

/* Copies of what is mounted on the root of this namespace, whose table `mountinfo` is. */
const char *take_mounts(int mountinfo, struct taken_mounts *taken) {
    static struct mount_entry entries[MAX_MOUNTS];
    unsigned present = 0;
    char *text = read_table(mountinfo);
    size_t count = text ? parse_table(text, entries) : 0;
    for (size_t i = 0; i < count; i++)
        if (!strcmp(entries[i].path, "/")) present = entries[i].id;
    errno = EINVAL;
    if (!present || count == MAX_MOUNTS) return "mount table";
    taken->count = 0;
    for (size_t i = 0; i < count; i++) {
        if (entries[i].parent != present || !strcmp(entries[i].path, "/")) continue;
        struct taken_mount *mount = &taken->mounts[taken->count];
        mount->path = entries[i].path;
        mount->tree = (int)syscall(CALL_OPEN_TREE, AT_FDCWD, mount->path,
                                   OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_RECURSIVE);
        if (mount->tree < 0) return mount->path;
        taken->count++;
    }
    return NULL;
}

/* Puts them in their places below `root`, a mount of this namespace, which becomes the working directory. */
const char *furnish(int root, const struct taken_mounts *taken) {
    for (size_t i = 0; i < taken->count; i++)
        if (put_mount(root, &taken->mounts[i])) return taken->mounts[i].path;
    if (fchdir(root)) return "new root";
    return renew_dev() ? "/dev" : NULL;
}

/* `root` is a mount that is furnished. If this fails, the present root is still in its place. */
const char *put_root(int root) {
    /* Kept until this process ends, after its answer: freeing a root that was written to takes time. */
    int old = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (old < 0) return "old root";
    if (syscall(CALL_MOVE_MOUNT, root, "", AT_FDCWD, "/", MOVE_FROM_EMPTY_PATH)) return "new root";
    const char *failed = fchdir(root) ? "new root" : NULL;
    if (!failed && syscall(SYS_pivot_root, ".", ".")) failed = "pivot_root";
    int error = errno;
    /* The old root lies on the new one now; or, if something failed, the new one on the old one. */
    if (failed) umount2("/..", MNT_DETACH);
    else if (umount2(".", MNT_DETACH)) failed = "detach the old root";
    if (chdir("/")) return "new root";
    errno = error;
    return failed;
}
