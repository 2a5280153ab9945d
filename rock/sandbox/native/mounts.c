/* The root directory of a rootless sandbox: one tmpfs, and on it the steps of the specification.
 *
 * Everything is on a tmpfs that only this mount namespace has: when its last process ends, every file
 * is gone, without anybody removing anything. That tmpfs stays below the root directory, where no path
 * leads: layers.c puts others there and makes new roots of them.
 */
#define _GNU_SOURCE
#include "mounts.h"

#include "calls.h"
#include "failing.h"
#include "layers.h"
#include "wire.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum step_kind {
    STEP_ROOT = 'R',    /* overlay of the directory `text` as the whole root; must come first */
    STEP_DIR = 'D',
    STEP_FILE = 'F',    /* with `text` as content */
    STEP_LINK = 'L',    /* to `text` */
    STEP_TMPFS = 'T',   /* of `text` bytes */
    STEP_BIND = 'B',    /* the host path `text` itself; mode 1: read-only, 2: a device */
};
#define MAX_TERMINALS "128" /* the host has some thousands, for everybody */
#define BIND_READ_ONLY 1u
#define BIND_DEVICE 2u

/* Binds are cloned by whoever may read the source; an image, unless it was by map_image_owners, by the
 * sandbox's own root. */
void open_sources(struct step *steps, uint32_t count, int bind_now) {
    for (uint32_t i = 0; i < count; i++) {
        struct step *step = &steps[i];
        int is_bind = step->kind == STEP_BIND;
        if (is_bind != bind_now || step->detached) continue;
        if (!is_bind && step->kind != STEP_ROOT) continue;
        unsigned flags = OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | (is_bind ? AT_RECURSIVE : 0);
        step->fd = (int)syscall(CALL_OPEN_TREE, AT_FDCWD, step->text, flags);
        if (step->fd < 0) fail_step("open", step->text);
    }
}

/* An image unpacked by root belongs to root's ids; here it shall belong to the sandbox's. Filesystems
 * that cannot do that are taken as they are: readable, and owned by nobody. */
void map_image_owners(struct step *steps, uint32_t count, int user_namespace) {
    struct mount_attributes attributes = {.set = MOUNT_ATTR_IDMAP, .userns = (uint64_t)user_namespace};
    if (!count || steps[0].kind != STEP_ROOT) return;
    int fd = (int)syscall(CALL_OPEN_TREE, AT_FDCWD, steps[0].text,
                          OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
    if (fd < 0) fail_step("open", steps[0].text);
    if (syscall(CALL_MOUNT_SETATTR, fd, "", AT_EMPTY_PATH, &attributes, sizeof attributes)) {
        close(fd);
        return;
    }
    steps[0].fd = fd;
    steps[0].detached = 1;
}

static void check(int failed, const char *what, const char *detail) {
    if (failed) fail_step(what, detail);
}

/* The path relative to the new root (our working directory), "." for the root itself. */
static const char *relative(const struct step *step) {
    const char *path = step->path + strspn(step->path, "/");
    errno = EINVAL;
    check(*step->path != '/', "place", step->path);
    return *path ? path : ".";
}

static void make_directories(const char *path, mode_t last_mode) {
    char *copy = strdup(path);
    check(!copy, "memory", "");
    for (char *slash = strchr(copy, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        check(mkdir(copy, 0755) && errno != EEXIST, "make the directory", copy);
        *slash = '/';
    }
    check(mkdir(copy, last_mode) && errno != EEXIST, "make the directory", copy);
    free(copy);
}

static void make_parents_of(const char *path) {
    char *copy = strdup(path), *slash = copy ? strrchr(copy, '/') : NULL;
    if (!slash) return;
    *slash = 0;
    make_directories(copy, 0755);
    free(copy);
}

static void make_file(const struct step *step) {
    const char *path = relative(step);
    make_parents_of(path);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    check(fd < 0 || write_all(fd, step->text, strlen(step->text)) || fchmod(fd, step->mode),
          "write", step->path);
    close(fd);
}

static void make_link(const struct step *step) {
    const char *path = relative(step);
    make_parents_of(path);
    if (unlink(path) && errno != ENOENT) fail_step("replace", step->path);
    check(symlink(step->text, path), "link", step->path);
}

/* An empty upper directory takes the place of the lower one's top, so it needs its mode. */
static void mount_image(const struct step *step) {
    check(mkdir("../u", 0755) || mkdir("../w", 0755) || mkdir("../l", 0755), "make", "layers");
    check((int)syscall(CALL_MOVE_MOUNT, step->fd, "", AT_FDCWD, "../l", MOVE_FROM_EMPTY_PATH),
          "attach", step->text);
    close(step->fd);
    check(chdir(".."), "enter", "the new root");
    check(mount("overlay", "r", "overlay", MS_NOSUID | MS_NODEV,
                "lowerdir=l,upperdir=u,workdir=w,userxattr,volatile"),
          "overlay", step->text);
    hidden.made_of[0] = "u";
    hidden.made_of[1] = "l";
}

static void mount_small_tmpfs(const struct step *step) {
    const char *path = relative(step);
    char options[64];
    make_directories(path, 0755);
    snprintf(options, sizeof options, "mode=%o,size=%s", step->mode, step->text);
    check(mount("rock", path, "tmpfs", MS_NOSUID | MS_NODEV, options), "mount", step->path);
}

/* A bind's target is a file or a directory, like its source. */
static void make_target(const struct step *step, const char *path) {
    struct stat source;
    check(fstat(step->fd, &source), "look at", step->text);
    if (S_ISDIR(source.st_mode)) {
        make_directories(path, 0755);
        return;
    }
    make_parents_of(path);
    int fd = open(path, O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0644);
    check(fd < 0, "make the mount point", step->path);
    close(fd);
}

static void mount_bind(const struct step *step) {
    const char *path = relative(step);
    struct mount_attributes attributes = {.set = MOUNT_ATTR_NOSUID};
    if (step->mode & BIND_READ_ONLY) attributes.set |= MOUNT_ATTR_RDONLY;
    if (!(step->mode & BIND_DEVICE)) attributes.set |= MOUNT_ATTR_NODEV;
    make_target(step, path);
    check((int)syscall(CALL_MOVE_MOUNT, step->fd, "", AT_FDCWD, path, MOVE_FROM_EMPTY_PATH), "mount",
          step->path);
    check((int)syscall(CALL_MOUNT_SETATTR, step->fd, "", AT_EMPTY_PATH | AT_RECURSIVE, &attributes,
                       sizeof attributes),
          "restrict the mount", step->path);
    close(step->fd);
}

static void take(const struct step *step) {
    switch (step->kind) {
    case STEP_ROOT: break;
    case STEP_DIR:
        make_directories(relative(step), step->mode);
        check(chmod(relative(step), step->mode), "set the mode of", step->path);
        break;
    case STEP_FILE: make_file(step); break;
    case STEP_LINK: make_link(step); break;
    case STEP_TMPFS: mount_small_tmpfs(step); break;
    case STEP_BIND: mount_bind(step); break;
    default: errno = EINVAL; fail_step("take step", step->path);
    }
}

/* Over any directory that exists everywhere: in this namespace nobody needs what it hides. */
static const char *mount_tmpfs(uint64_t bytes, uint64_t inodes) {
    static const char *const places[] = {"/mnt", "/srv", "/sys", "/tmp"};
    char options[128];
    int size = snprintf(options, sizeof options, "mode=0755");
    if (bytes) size += snprintf(options + size, sizeof options - (size_t)size, ",size=%llu",
                                (unsigned long long)bytes);
    if (inodes) snprintf(options + size, sizeof options - (size_t)size, ",nr_inodes=%llu",
                         (unsigned long long)inodes);
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        if (mount("rock", places[i], "tmpfs", MS_NOSUID | MS_NODEV, options) == 0)
            return places[i];
        if (errno != ENOENT && errno != ENOTDIR) break;
    }
    fail_step("mount a tmpfs", "");
}

static void mount_kernel_views(void) {
    make_directories("proc", 0555);
    check(mount("proc", "proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL), "mount", "/proc");
    /* What is below belongs to namespaces of our own, and still nobody needs to write to it. */
    struct mount_attributes read_only = {.set = MOUNT_ATTR_RDONLY};
    int settings = (int)syscall(CALL_OPEN_TREE, AT_FDCWD, "proc/sys",
                                OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
    check(settings < 0 ||
              syscall(CALL_MOUNT_SETATTR, settings, "", AT_EMPTY_PATH, &read_only,
                      sizeof read_only) ||
              syscall(CALL_MOVE_MOUNT, settings, "", AT_FDCWD, "proc/sys", MOVE_FROM_EMPTY_PATH),
          "restrict", "/proc/sys");
    close(settings);
    make_directories("dev/pts", 0755);
    check(mount("devpts", "dev/pts", "devpts", MS_NOSUID | MS_NOEXEC,
                "newinstance,ptmxmode=0666,mode=0620,max=" MAX_TERMINALS),
          "mount", "/dev/pts");
}

/* Descends to the tmpfs: its directory "r" is the new root, or an overlay on it is. */
static void enter_new_root(struct step *steps, uint32_t count, const char *place) {
    check(chdir(place) || mkdir("r", 0755) || mkdir("next", 0700), "make", "the new root");
    hidden.root = open(".", O_PATH | O_DIRECTORY | O_CLOEXEC);
    check(hidden.root < 0 || chdir("r"), "enter", "the new root");
    if (count && steps[0].kind == STEP_ROOT) {
        mount_image(&steps[0]);
    } else {
        /* A root must be a mount point. */
        check(mount(".", ".", NULL, MS_BIND, NULL), "bind", "the new root");
        hidden.made_of[0] = "r";
    }
    check(fchdir(hidden.root) || chdir("r"), "enter", "the new root");
}

/* The tmpfs becomes the root of the namespace, and the new root is put on top of it. */
static void change_root(void) {
    int root = open(".", O_PATH | O_DIRECTORY | O_CLOEXEC);
    check(root < 0 || fchdir(hidden.root), "enter", "the new root");
    check((int)syscall(SYS_pivot_root, ".", "."), "pivot_root", "");
    check(umount2(".", MNT_DETACH), "detach", "the old root");
    check((int)syscall(CALL_MOVE_MOUNT, root, "", AT_FDCWD, "/", MOVE_FROM_EMPTY_PATH), "place",
          "the new root");
    check(fchdir(root) || chroot("."), "enter", "the new root");
    close(root);
}

void build_root(struct step *steps, uint32_t count, uint64_t bytes, uint64_t inodes) {
    check(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL), "make mounts private", "");
    umask(0);
    hidden.bytes = bytes;
    hidden.inodes = inodes;
    enter_new_root(steps, count, mount_tmpfs(bytes, inodes));
    for (uint32_t i = 0; i < count; i++) take(&steps[i]);
    mount_kernel_views();
    change_root();
    umask(022);
}
