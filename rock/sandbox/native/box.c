/* The rootless sandbox: namespaces of its own, then a root directory of its own (mounts.c).
 *
 * Works for root and for anybody whom the kernel lets make user namespaces. In both cases ids inside
 * are mapped to ids that own nothing on the host: a range far up when root starts it, else the
 * one id of the caller, so that the sandbox's root never has the powers of the host's.
 *
 * The specification is read from a file descriptor (usually a memfd), in the encoding of wire.c:
 *
 *     u32 flags (1: a network namespace, empty but for lo; 2: started by root) | u32 uid, u32 gid of
 *     the helper inside |
 *     6 * u32 uid map and gid map: inside, outside, count | u64 bytes | u64 inodes of the root tmpfs |
 *     u64 lifetime ms | text host name | u32 n, n steps: u8 kind | text path | text text | u32 mode
 *
 * The control socket is SOCK_SEQPACKET. It gets "ok" when the sandbox serves, or "STEP: reason"; then
 * every descriptor sent over it is a connection, and its end is the end of the sandbox.
 *
 * Processes: this one stays outside as the parent (the harness waits for it); its child is PID 1.
 */
#define _GNU_SOURCE
#include "box.h"

#include "failing.h"
#include "mounts.h"
#include "wire.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define MAX_SPEC_BYTES (8 * 1024 * 1024)
#define FLAG_OWN_NETWORK 1u
#define FLAG_BY_ROOT 2u
#define SHARE_OF_WATCHES 8
#define FEWEST_WATCHES 8

struct map {
    uint32_t inside, outside, count;
};
struct box {
    uint32_t flags, uid, gid, step_count;
    struct map uids, gids;
    uint64_t bytes, inodes, lifetime_ms;
    char *hostname;
    struct step *steps;
};

static void check(int failed, const char *step) {
    if (failed) fail_step(step, "");
}

static struct box read_spec(int fd) {
    struct frame whole = {.body = malloc(MAX_SPEC_BYTES)};
    struct box box = {0};
    ssize_t got;
    check(!whole.body, "memory");
    while (whole.size < MAX_SPEC_BYTES &&
           (got = read(fd, whole.body + whole.size, MAX_SPEC_BYTES - whole.size)) > 0)
        whole.size += (uint32_t)got;
    close(fd);
    struct reader spec = reader_of(&whole);
    box.flags = get_u32(&spec);
    box.uid = get_u32(&spec);
    box.gid = get_u32(&spec);
    struct map *maps[] = {&box.uids, &box.gids};
    for (int i = 0; i < 2; i++) {
        maps[i]->inside = get_u32(&spec);
        maps[i]->outside = get_u32(&spec);
        maps[i]->count = get_u32(&spec);
    }
    box.bytes = get_u64(&spec);
    box.inodes = get_u64(&spec);
    box.lifetime_ms = get_u64(&spec);
    box.hostname = get_text(&spec);
    box.step_count = get_u32(&spec);
    errno = EINVAL;
    check(spec.bad || box.step_count > 10000, "read the specification");
    box.steps = calloc(box.step_count + 1, sizeof *box.steps);
    for (uint32_t i = 0; box.steps && i < box.step_count; i++) {
        box.steps[i].kind = get_u8(&spec);
        box.steps[i].path = get_text(&spec);
        box.steps[i].text = get_text(&spec);
        box.steps[i].mode = get_u32(&spec);
        box.steps[i].fd = NO_FD;
    }
    errno = EINVAL;
    check(spec.bad || !box.steps, "read the specification");
    return box;
}

static void write_text(pid_t pid, const char *name, const char *text) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/%s", pid, name);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0 || write_all(fd, text, strlen(text))) fail_step("map ids in", path);
    close(fd);
}

static void write_map(pid_t pid, const char *name, const struct map *map) {
    char text[64];
    snprintf(text, sizeof text, "%u %u %u\n", map->inside, map->outside, map->count);
    write_text(pid, name, text);
}

/* Makes the user namespace, says so, and holds it until the other end of `hold` is closed: by us when
 * we are in it, or by the kernel if we are killed. */
static void hold_user_namespace(int say, int hold) {
    char byte = 1;
    check(unshare(CLONE_NEWUSER), "make a user namespace");
    write_all(say, &byte, 1);
    while (read(hold, &byte, 1) < 0 && errno == EINTR) continue;
    _exit(0);
}

/* A child makes the user namespace and we map its ids from outside, where we still may. */
static void enter_user_namespace(const struct box *box) {
    int said[2], hold[2], by_root = (box->flags & FLAG_BY_ROOT) != 0;
    char path[64], byte;
    check(pipe2(said, O_CLOEXEC) || pipe2(hold, O_CLOEXEC), "pipe");
    pid_t child = fork();
    check(child < 0, "fork");
    if (child == 0) {
        close(hold[1]);
        hold_user_namespace(said[1], hold[0]);
    }
    close(said[1]);
    close(hold[0]);
    if (read(said[0], &byte, 1) != 1) _exit(71); /* the child has reported why */
    if (!by_root) write_text(child, "setgroups", "deny");
    write_map(child, "uid_map", &box->uids);
    write_map(child, "gid_map", &box->gids);
    snprintf(path, sizeof path, "/proc/%d/ns/user", child);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (by_root) map_image_owners(box->steps, box->step_count, fd);
    check(fd < 0 || setns(fd, CLONE_NEWUSER), "enter the user namespace");
    close(fd);
    close(said[0]);
    close(hold[1]);
    waitpid(child, NULL, 0);
}

/* What a user namespace uses of these is charged to whoever made it, too: without a bound of its own one
 * sandbox could use up what the harness, or the host's root, has. Called inside the user namespace, where
 * the bounds under /proc/sys/user are its own. Where /proc is not to be written to there is no bound. */
static void bound_watches(const char *of_the_host, const char *own) {
    char text[32];
    int from = open(of_the_host, O_RDONLY | O_CLOEXEC), to = open(own, O_WRONLY | O_CLOEXEC);
    ssize_t size = from < 0 ? -1 : read(from, text, sizeof text - 1);
    if (size > 0 && to >= 0) {
        text[size] = 0;
        long share = atol(text) / SHARE_OF_WATCHES;
        size = snprintf(text, sizeof text, "%ld", share < FEWEST_WATCHES ? FEWEST_WATCHES : share);
        write_all(to, text, (size_t)size);
    }
    if (from >= 0) close(from);
    if (to >= 0) close(to);
}

static void become_helper(const struct box *box) {
    gid_t none[1];
    if (setgroups(0, none) && errno != EPERM) fail_step("drop groups", "");
    check(setresgid(box->gid, box->gid, box->gid), "set the group");
    check(setresuid(box->uid, box->uid, box->uid), "set the user");
}

static void raise_loopback(void) {
    struct ifreq request = {0};
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    strcpy(request.ifr_name, "lo");
    request.ifr_flags = IFF_UP | IFF_RUNNING;
    check(fd < 0 || ioctl(fd, SIOCSIFFLAGS, &request), "raise the loopback interface");
    close(fd);
}

/* Raising one's own score needs no right; the kernel then ends the sandbox before the harness. */
static void prefer_for_oom(void) {
    int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    if (fd < 0) return;
    write_all(fd, "500", 3);
    close(fd);
}

static int inside(const struct box *box, int control, answering *answer) {
    struct serving serving = {
        .answer = answer,
        .listener = NO_FD,
        .control = control,
        .lifetime_ns = (int64_t)box->lifetime_ms * 1000000,
    };
    setsid();
    build_root(box->steps, box->step_count, box->bytes, box->inodes);
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* last: a change of credentials clears it */
    check(send(control, "ok", 2, MSG_NOSIGNAL) != 2, "answer");
    return serve(&serving);
}

int run_local(int spec_fd, int control, answering *answer) {
    report_to(control);
    fcntl(control, F_SETFD, FD_CLOEXEC);
    signal(SIGTERM, SIG_IGN); /* ended through its child, so that its end means the sandbox's */
    signal(SIGINT, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    struct box box = read_spec(spec_fd);
    int by_root = (box.flags & FLAG_BY_ROOT) != 0, status;
    prefer_for_oom();
    if (by_root) open_sources(box.steps, box.step_count, 1);
    enter_user_namespace(&box);
    bound_watches("/proc/sys/fs/inotify/max_user_instances", "/proc/sys/user/max_inotify_instances");
    bound_watches("/proc/sys/fs/inotify/max_user_watches", "/proc/sys/user/max_inotify_watches");
    int flags = CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP;
    check(unshare(flags), "make mount, process, ipc, host name and cgroup namespaces");
    if (box.flags & FLAG_OWN_NETWORK) {
        check(unshare(CLONE_NEWNET), "make a network namespace");
        raise_loopback();
    }
    check(sethostname(box.hostname, strlen(box.hostname)), "set the host name");
    if (!by_root) open_sources(box.steps, box.step_count, 1);
    open_sources(box.steps, box.step_count, 0);
    become_helper(&box);
    check(chdir("/"), "leave the working directory");
    pid_t child = fork();
    check(child < 0, "fork");
    if (child == 0) _exit(inside(&box, control, answer));
    close(control);
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
