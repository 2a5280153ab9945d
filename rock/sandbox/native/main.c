/* rock-init: PID 1 of every sandbox.
 *
 *   rock-init serve SOCKET_PATH [--lifetime SECONDS] [--lease SECONDS] [--control-fd N]
 *       Serve requests (wire.c) on a unix socket until SIGTERM, the end of the lifetime or of the
 *       lease, or the end of the control socket. As PID 1 of a container it is init and reaper too.
 *       SOCKET_PATH "-" is no socket: requests then come from `rock-init mux` only.
 *   rock-init mux
 *       Serve requests that come over stdin, and answer on stdout (mux.c).
 *   rock-init local --spec-fd N --control-fd N [--cgroup-fd N]... [--oom-fd N]
 *       Make a rootless sandbox from a specification (box.c), then serve inside it as PID 1.
 *   rock-init keep --control-fd N
 *       Serve on the host, as root, what is done to containers from outside (ATTACH, layers.c; STORE,
 *       storage.c).
 *
 * Order to read: wire.c (protocol), serve.c (the loop), requests.c (who answers what), exec.c (one
 * command), files.c and tree.c, harden.c, box.c and mounts.c, sweep.c, layers.c and replace.c, mux.c and
 * tunnel.c. Each file includes only what is below it. A request runs in a process of its own, so nothing
 * is freed and nothing waits for anything else.
 */
#define _GNU_SOURCE
#include "box.h"
#include "mux.h"
#include "processes.h"
#include "requests.h"
#include "serve.h"
#include "storage.h"
#include "wire.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

static int usage(void) {
    static const char text[] =
        "usage: rock-init serve SOCKET_PATH [--lifetime SECONDS] [--lease SECONDS]\n"
        "                       [--control-fd N]\n"
        "       rock-init mux\n"
        "       rock-init local --spec-fd N --control-fd N\n"
        "       rock-init keep --control-fd N\n";
    write_all(2, text, sizeof text - 1);
    return 64;
}

/* `fd` is the cgroup.procs of a control group; whoever writes 0 there is in it, and all its children. */
static void join_cgroup(int fd) {
    if (write_all(fd, "0", 1)) fprintf(stderr, "rock-init: control group: %s\n", strerror(errno));
    close(fd);
}

/* Received descriptors must never land on 0, 1 or 2. */
static void fill_standard_descriptors(void) {
    int fd;
    do {
        fd = open("/dev/null", O_RDWR);
    } while (fd >= 0 && fd <= 2);
    if (fd > 2) close(fd);
}

static void raise_open_files(void) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

/* The socket belongs to whoever made its directory: on the host that need not be root. */
static void hand_over(const char *path) {
    char *folder = strdup(path), *slash = folder ? strrchr(folder, '/') : NULL;
    struct stat info;
    if (slash) {
        *slash = 0;
        if (stat(*folder ? folder : "/", &info) == 0 && info.st_uid != geteuid())
            if (chown(path, info.st_uid, info.st_gid))
                fprintf(stderr, "rock-init: cannot hand over %s: %s\n", path, strerror(errno));
    }
    free(folder);
}

static int listen_at(const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof address.sun_path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    memcpy(address.sun_path, path, strlen(path) + 1);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return -1;
    unlink(path); /* a socket left by a container that was restarted */
    if (bind(fd, (struct sockaddr *)&address, sizeof address) || chmod(path, 0600) ||
        listen(fd, 1024)) {
        close(fd);
        return -1;
    }
    hand_over(path);
    return fd;
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "", *path = NULL;
    int control = NO_FD, spec = NO_FD;
    double lifetime_seconds = 0, lease_seconds = 0;
    for (int i = 2; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if ((argv[i][0] != '-' || !argv[i][1]) && !path) {
            path = argv[i];
            continue;
        }
        if (!value) return usage();
        if (!strcmp(argv[i], "--lifetime")) lifetime_seconds = strtod(value, NULL);
        else if (!strcmp(argv[i], "--lease")) lease_seconds = strtod(value, NULL);
        else if (!strcmp(argv[i], "--control-fd")) control = atoi(value);
        else if (!strcmp(argv[i], "--spec-fd")) spec = atoi(value);
        else if (!strcmp(argv[i], "--cgroup-fd")) join_cgroup(atoi(value));
        else if (!strcmp(argv[i], "--oom-fd")) keep_oom_counter(atoi(value));
        else return usage();
        i++;
    }
    fill_standard_descriptors();
    raise_open_files();
    if (!strcmp(mode, "local") && spec >= 0 && control >= 0) return run_local(spec, control, answer_request);
    if (!strcmp(mode, "keep") && control >= 0) {
        struct serving keeping = {
            .answer = answer_request, .listener = NO_FD, .control = control,
        };
        fcntl(control, F_SETFD, FD_CLOEXEC);
        keep_own_mounts();
        return serve(&keeping);
    }
    if (!strcmp(mode, "mux")) return run_mux(0, 1, answer_request);
    if (strcmp(mode, "serve") || !path) return usage();

    int has_socket = strcmp(path, "-") != 0;
    struct serving serving = {
        .answer = answer_request,
        .listener = has_socket ? listen_at(path) : NO_FD,
        .control = control,
        .lifetime_ns = (int64_t)(lifetime_seconds * 1e9),
        .lease_ns = (int64_t)(lease_seconds * 1e9),
        .socket_path = has_socket ? path : NULL,
    };
    if (has_socket && serving.listener < 0) {
        fprintf(stderr, "rock-init: cannot listen at %s: %s\n", path, strerror(errno));
        return 71;
    }
    return serve(&serving);
}
