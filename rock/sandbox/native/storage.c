/* A bound on what a container writes: its layers lie on a file system of their own, in a file.
 *
 * The keeper (main.c) has a mount namespace of its own, and the mounts are there only: when it ends,
 * whatever ended it, the kernel drops them, the loop devices free themselves, and the file, which has
 * no name any more, is gone. An overlay that is still in use keeps what it needs until then.
 */
#define _GNU_SOURCE
#include "storage.h"

#include "processes.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/loop.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <unistd.h>

#define MAX_TRIES 100

static int has_own_mounts;

/* What the host mounts later is seen here; what is mounted here is seen by nobody. */
void keep_own_mounts(void) {
    has_own_mounts = !unshare(CLONE_NEWNS) && !mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL);
}

static int fail(int conn, const char *what) {
    int error = errno;
    char text[256];
    snprintf(text, sizeof text, "%s: %s", what, strerror(error));
    return reply_error(conn, STAGE_LAYER, error, text) ? 1 : 0;
}

/* A loop device on `file`, which frees itself when nobody uses it; its name in `path`. */
static int open_loop(int file, char *path, size_t size) {
    struct loop_config config = {.fd = (__u32)file};
    config.info.lo_flags = LO_FLAGS_AUTOCLEAR;
    int control = open("/dev/loop-control", O_RDWR | O_CLOEXEC);
    if (control < 0) return -1;
    for (int i = 0; i < MAX_TRIES; i++) {
        int number = ioctl(control, LOOP_CTL_GET_FREE);
        if (number < 0) break;
        snprintf(path, size, "/dev/loop%d", number);
        int loop = open(path, O_RDWR | O_CLOEXEC);
        if (loop < 0) break;
        if (!ioctl(loop, LOOP_CONFIGURE, &config)) {
            close(control);
            return loop;
        }
        int taken = errno == EBUSY;
        close(loop);
        if (!taken) break;
        nap_ns(1000000); /* somebody else was faster */
    }
    int error = errno;
    close(control);
    errno = error;
    return -1;
}

/* text file with an ext4 file system | text directory to mount it at; the file loses its name */
int handle_store(int conn, const struct frame *frame) {
    struct reader reader = reader_of(frame);
    char *image = get_text(&reader), *place = get_text(&reader), device[32];
    errno = reader.bad ? EINVAL : ENOTSUP;
    if (reader.bad || !has_own_mounts) return fail(conn, "a mount namespace of its own");
    int file = open(image, O_RDWR | O_CLOEXEC);
    if (file < 0) return fail(conn, "storage file");
    int loop = open_loop(file, device, sizeof device);
    if (loop < 0) return fail(conn, "loop device");
    if (mount(device, place, "ext4", MS_NOSUID | MS_NODEV | MS_NOATIME, "discard"))
        return fail(conn, "mount the storage");
    unlink(image);
    return send_frame(conn, REP_DONE, NULL, 0, NO_FD) ? 1 : 0;
}

/* text directory */
int handle_unstore(int conn, const struct frame *frame) {
    struct reader reader = reader_of(frame);
    char *place = get_text(&reader);
    errno = reader.bad ? EINVAL : ENOTSUP;
    if (reader.bad || !has_own_mounts) return fail(conn, "storage");
    if (umount2(place, MNT_DETACH | UMOUNT_NOFOLLOW)) return fail(conn, "unmount the storage");
    return send_frame(conn, REP_DONE, NULL, 0, NO_FD) ? 1 : 0;
}
