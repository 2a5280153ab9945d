/* State in layers: a root directory is an overlay of a fresh upper layer on layers below it.
 *
 * SWAP gives the sandbox a new root: an empty layer above the ones named, above what it was made of.
 * So a reset is a swap above nothing, a snapshot a swap above the layer that was on top until now, a
 * restore a swap above an older one. Every layer is a tmpfs of its own, so dropping one is one unmount,
 * whatever was written to it.
 *
 * They hang in the hidden root (mounts.c), in directories "g" and their number; layer 0 is what the
 * sandbox was made of and always below. TREE passes one out, a mount that lives as long as somebody holds
 * it, and ADOPT takes one in from another sandbox.
 *
 * PREPARE and ATTACH are the same for a container: started on the host, by root, this program makes the
 * overlay of host directories there, ahead of time and with all that the container has mounted, and enters
 * the container's mount namespace only to put it in place.
 */
#define _GNU_SOURCE
#include "layers.h"

#include "calls.h"
#include "files.h"
#include "replace.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MAX_LAYERS 200
#define MAX_DIFFERENCES 20

struct hidden hidden = {.root = NO_FD};
static struct taken_mounts taken;

struct overlay {
    int lowers[MAX_LAYERS];
    uint32_t lower_count;
    int storage; /* a directory for "u" and "w" */
    const char *options;
};

static int fail(int conn, const char *what) {
    int error = errno;
    char text[256];
    snprintf(text, sizeof text, "%s: %s", what, strerror(error));
    return reply_error(conn, STAGE_LAYER, error, text) ? 1 : 0;
}

static int open_directory(int at, const char *path) {
    return openat(at, path, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

static void layer_name(char *name, size_t size, uint32_t number, const char *rest) {
    snprintf(name, size, "g%u%s", number, rest);
}

/* The upper layer lies over the top of the others, so its root needs their mode and owner. */
static int make_upper(const struct overlay *overlay) {
    struct stat top;
    if (fstat(overlay->lowers[0], &top)) return -1;
    if (mkdirat(overlay->storage, "u", 0755) || mkdirat(overlay->storage, "w", 0700)) return -1;
    if (fchownat(overlay->storage, "u", top.st_uid, top.st_gid, 0)) return -1;
    return fchmodat(overlay->storage, "u", top.st_mode & 07777, 0);
}

static int mount_overlay(const struct overlay *overlay, const char *place) {
    char options[4096];
    int size = snprintf(options, sizeof options, "%s,upperdir=/proc/self/fd/%d/u,workdir=/proc/self/fd/%d/w,lowerdir=",
                        overlay->options, overlay->storage, overlay->storage);
    if (make_upper(overlay)) return -1;
    for (uint32_t i = 0; i < overlay->lower_count && size < (int)sizeof options; i++)
        size += snprintf(options + size, sizeof options - (size_t)size, "%s/proc/self/fd/%d",
                         i ? ":" : "", overlay->lowers[i]);
    if (size >= (int)sizeof options) {
        errno = E2BIG;
        return -1;
    }
    return mount("overlay", place, "overlay", MS_NODEV | MS_NOSUID, options);
}

/* What is in the new upper layer already, beside places for mounts: it should be nothing. */
static void put_differences(struct writer *writer, int storage) {
    int fd = openat(storage, "u", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *folder = fd < 0 ? NULL : fdopendir(fd);
    char *names[MAX_DIFFERENCES];
    uint32_t count = 0;
    for (struct dirent *entry; folder && count < MAX_DIFFERENCES && (entry = readdir(folder));)
        if (usable_name(entry->d_name)) names[count++] = strdup(entry->d_name);
    put_u32(writer, count);
    for (uint32_t i = 0; i < count; i++) put_text(writer, names[i]);
}

static int reply_swapped(int conn, int storage) {
    struct writer writer = {.size = 0};
    put_differences(&writer, storage);
    return send_frame(conn, REP_DONE, writer.bytes, writer.size, NO_FD) ? 1 : 0;
}

static int new_layer(uint32_t number) {
    char name[32], options[128];
    layer_name(name, sizeof name, number, "");
    int size = snprintf(options, sizeof options, "mode=0755");
    if (hidden.bytes) size += snprintf(options + size, sizeof options - (size_t)size, ",size=%llu",
                                       (unsigned long long)hidden.bytes);
    if (hidden.inodes) snprintf(options + size, sizeof options - (size_t)size, ",nr_inodes=%llu",
                                (unsigned long long)hidden.inodes);
    if (mkdirat(hidden.root, name, 0700) || fchdir(hidden.root)) return -1;
    if (mount("rock", name, "tmpfs", MS_NOSUID | MS_NODEV, options)) return -1;
    return open_directory(hidden.root, name);
}

static void drop_layer(uint32_t number) {
    char name[32];
    layer_name(name, sizeof name, number, "");
    if (fchdir(hidden.root)) return;
    umount2(name, MNT_DETACH | UMOUNT_NOFOLLOW);
    rmdir(name);
    if (chdir("/")) return;
}

/* u32 number of the new layer | u32 n, n times u32: layers below, the topmost first */
int handle_swap(int conn, const struct frame *frame) {
    struct reader reader = reader_of(frame);
    struct overlay overlay = {.options = "userxattr,volatile"};
    uint32_t number = get_u32(&reader), count = get_u32(&reader);
    errno = ENOTSUP;
    if (hidden.root == NO_FD) return fail(conn, "this sandbox has no layers");
    errno = EINVAL;
    if (reader.bad || count > MAX_LAYERS - 2) return fail(conn, "layers");
    for (uint32_t i = 0; i < count; i++) {
        char name[32];
        layer_name(name, sizeof name, get_u32(&reader), "/u");
        overlay.lowers[overlay.lower_count++] = open_directory(hidden.root, name);
    }
    for (int i = 0; i < 2; i++)
        if (hidden.made_of[i])
            overlay.lowers[overlay.lower_count++] = open_directory(hidden.root, hidden.made_of[i]);
    for (uint32_t i = 0; i < overlay.lower_count; i++)
        if (overlay.lowers[i] < 0) return fail(conn, "layer below");
    overlay.storage = new_layer(number);
    const char *failed = overlay.storage < 0 ? "new layer" : NULL;
    if (!failed && mount_overlay(&overlay, "next")) failed = "overlay";
    int root = failed ? NO_FD : open_directory(hidden.root, "next");
    int table = open("/proc/self/mountinfo", O_RDONLY | O_CLOEXEC);
    if (!failed && (root < 0 || table < 0)) failed = "new root";
    if (!failed) failed = take_mounts(table, &taken);
    if (!failed) failed = furnish(root, &taken);
    if (!failed) failed = put_root(root);
    if (!failed) return reply_swapped(conn, overlay.storage);
    int error = errno;
    if (root >= 0 && !fchdir(hidden.root)) umount2("next", MNT_DETACH | UMOUNT_NOFOLLOW);
    if (overlay.storage >= 0) drop_layer(number);
    errno = error;
    return fail(conn, failed);
}

/* u32 number */
int handle_drop(int conn, const struct frame *frame) {
    struct reader reader = reader_of(frame);
    uint32_t number = get_u32(&reader);
    errno = ENOTSUP;
    if (hidden.root == NO_FD || reader.bad) return fail(conn, "drop");
    /* Answered first: freeing what was written takes its time. */
    int sent = send_frame(conn, REP_DONE, NULL, 0, NO_FD);
    drop_layer(number);
    return sent ? 1 : 0;
}

/* u32 number; answered with a descriptor of its mount */
int handle_tree(int conn, const struct frame *frame) {
    struct reader reader = reader_of(frame);
    struct writer writer = {.size = 0};
    char name[32];
    layer_name(name, sizeof name, get_u32(&reader), "");
    errno = ENOTSUP;
    if (hidden.root == NO_FD || reader.bad) return fail(conn, "layer");
    int tree = (int)syscall(CALL_OPEN_TREE, hidden.root, name, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
    if (tree < 0) return fail(conn, "layer");
    put_u64(&writer, 0);
    return send_frame(conn, REP_FD, writer.bytes, writer.size, tree) ? 1 : 0;
}

/* u32 number, and a descriptor that TREE has given */
int handle_adopt(int conn, const struct frame *frame) {
    struct reader reader = reader_of(frame);
    char name[32];
    layer_name(name, sizeof name, get_u32(&reader), "");
    errno = ENOTSUP;
    if (hidden.root == NO_FD || reader.bad || frame->fd_count != 1) return fail(conn, "layer");
    if (mkdirat(hidden.root, name, 0700)) return fail(conn, "layer");
    if (syscall(CALL_MOVE_MOUNT, frame->fds[0], "", hidden.root, name, MOVE_FROM_EMPTY_PATH))
        return fail(conn, "take in a layer");
    return send_frame(conn, REP_DONE, NULL, 0, NO_FD) ? 1 : 0;
}

/* What a container has mounted, taken from within and put into `root` out here. */
static const char *furnish_from(int namespace, int mountinfo, int root) {
    int own = open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC);
    if (own < 0 || setns(namespace, CLONE_NEWNS)) return "enter the container";
    const char *failed = take_mounts(mountinfo, &taken);
    int error = errno;
    if (setns(own, CLONE_NEWNS)) return "leave the container";
    errno = error;
    return failed ? failed : furnish(root, &taken);
}

/* text storage directory | u32 n, n texts: directories below, the topmost first; descriptors: a mount
 * namespace, the mountinfo of a process in it. Answered with a descriptor of the root, complete and
 * mounted nowhere yet */
int handle_prepare(int conn, const struct frame *frame) {
    struct reader reader = reader_of(frame);
    struct writer writer = {.size = 0};
    struct overlay overlay = {.options = "volatile,index=off"};
    char *storage = get_text(&reader), **lowers = get_texts(&reader, &overlay.lower_count);
    errno = EINVAL;
    if (reader.bad || !overlay.lower_count || overlay.lower_count > MAX_LAYERS || frame->fd_count != 2)
        return fail(conn, "prepare");
    /* In a mount namespace of this process alone: nobody else on the host sees the mount. */
    if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL))
        return fail(conn, "mount namespace");
    overlay.storage = open(storage, O_PATH | O_DIRECTORY | O_CLOEXEC);
    for (uint32_t i = 0; i < overlay.lower_count; i++) {
        overlay.lowers[i] = open(lowers[i], O_PATH | O_DIRECTORY | O_CLOEXEC);
        if (overlay.lowers[i] < 0) return fail(conn, "layer below");
    }
    if (overlay.storage < 0 || fchdir(overlay.storage) || mkdir("m", 0700))
        return fail(conn, "storage");
    if (mount_overlay(&overlay, "m")) return fail(conn, "overlay");
    int root = open_directory(overlay.storage, "m");
    if (root < 0) return fail(conn, "new root");
    const char *failed = furnish_from(frame->fds[0], frame->fds[1], root);
    if (failed) return fail(conn, failed);
    int tree = (int)syscall(CALL_OPEN_TREE, root, "",
                            OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_RECURSIVE | AT_EMPTY_PATH);
    if (tree < 0) return fail(conn, "new root");
    put_u64(&writer, 0);
    return send_frame(conn, REP_FD, writer.bytes, writer.size, tree) ? 1 : 0;
}

/* descriptors: what PREPARE has given, the mount namespace it was made for */
int handle_attach(int conn, const struct frame *frame) {
    errno = EINVAL;
    if (frame->fd_count != 2) return fail(conn, "attach");
    if (setns(frame->fds[1], CLONE_NEWNS)) return fail(conn, "enter the container");
    const char *failed = put_root(frame->fds[0]);
    if (failed) return fail(conn, failed);
    return send_frame(conn, REP_DONE, NULL, 0, NO_FD) ? 1 : 0;
}
