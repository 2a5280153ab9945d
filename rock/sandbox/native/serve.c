/* The server: takes connections, gives each a process, reaps, and ends with its owner.
 *
 * It never blocks on a client: the request is read by the new process. What it does itself:
 * - a command's supervisor that is killed from inside the sandbox is answered for (REP_LOST);
 * - a child that is no handler is an orphan whose supervisor is gone; it is killed;
 * - a handler whose client left and that does not end by itself soon is killed.
 */
#define _GNU_SOURCE
#include "serve.h"

#include "processes.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define MAX_HANDLERS 4000
#define LINGER_NS (5 * (int64_t)1000000000)
#define ROOM_BOUND_NS (2 * (int64_t)1000000000)
#define REQUEST_BOUND_MS 100
#define MAX_MS (1000ull * 3600 * 24 * 365)
#define LAST_BOUND_NS (10 * (int64_t)1000000000)

struct handler {
    int conn;
    int64_t kill_at_ns; /* 0 while its client is there */
};
struct renewal {
    int64_t lease_ns, lifetime_ns;
};
static int renewals[2] = {NO_FD, NO_FD};
static int64_t lease_end_ns, lifetime_end_ns; /* 0: none */
static pid_t handler_pids[MAX_HANDLERS];
static struct handler handlers[MAX_HANDLERS];
static size_t handler_count;
int is_init;

int is_handler(pid_t pid) {
    for (size_t i = 0; i < handler_count; i++)
        if (handler_pids[i] == pid) return 1;
    return 0;
}

/* A handler has a memory of its own, so it tells PID 1 by a pipe that commands never see. */
int handle_renew(int conn, const struct frame *frame) {
    struct reader reader = reader_of(frame);
    uint64_t lease_ms = get_u64(&reader), lifetime_ms = get_u64(&reader);
    struct renewal renewal = {(int64_t)lease_ms * 1000000, (int64_t)lifetime_ms * 1000000};
    if (reader.bad || lease_ms > MAX_MS || lifetime_ms > MAX_MS)
        return reply_error(conn, STAGE_REQUEST, EINVAL, "malformed renewal") ? 1 : 0;
    if (write_all(renewals[1], &renewal, sizeof renewal))
        return reply_error(conn, STAGE_PROCESS, errno, "cannot renew") ? 1 : 0;
    return send_frame(conn, REP_DONE, NULL, 0, NO_FD) ? 1 : 0;
}

static void forget_handler(size_t index, int status) {
    if (!WIFEXITED(status)) {
        const unsigned char lost[5] = {1, 0, 0, 0, REP_LOST};
        send(handlers[index].conn, lost, sizeof lost, MSG_DONTWAIT | MSG_NOSIGNAL);
    }
    close(handlers[index].conn);
    handler_count--;
    handlers[index] = handlers[handler_count];
    handler_pids[index] = handler_pids[handler_count];
}

static void reap(void) {
    int status, orphans = 0;
    pid_t pid;
    while ((pid = waitpid(-1, &status, WNOHANG | WUNTRACED)) > 0) {
        if (WIFSTOPPED(status)) { /* nobody inside may stop a supervisor */
            kill(pid, SIGCONT);
            continue;
        }
        size_t index = 0;
        while (index < handler_count && handler_pids[index] != pid) index++;
        if (index == handler_count || !WIFEXITED(status) || WEXITSTATUS(status)) orphans = 1;
        if (index < handler_count) forget_handler(index, status);
    }
    if (orphans) signal_children(handler_pids, handler_count);
}

/* Whether the request on `conn` is to end every process: the one that must not need a free one. */
static int asks_for_sweep(int conn) {
    unsigned char head[5];
    struct pollfd arrives = {conn, POLLIN, 0};
    poll(&arrives, 1, REQUEST_BOUND_MS);
    ssize_t got = recv(conn, head, sizeof head, MSG_PEEK | MSG_DONTWAIT);
    return got == (ssize_t)sizeof head && head[4] == REQ_SWEEP;
}

/* The sandbox is at its bound of processes, perhaps because some make others as fast as they can. */
static void make_room(void) {
    int64_t deadline = now_ns() + ROOM_BOUND_NS;
    do {
        kill(-1, SIGKILL);
        nap_ns(1000000);
        reap();
    } while (handler_count && now_ns() < deadline);
}

/* A renewal that is all there is answered without a process of its own: a pool waits for it, and the
 * heartbeat of a thousand sandboxes sends one to each. What it needs never waits. */
static int renewed_at_once(int conn) {
    unsigned char bytes[5 + 16];
    if (recv(conn, bytes, sizeof bytes, MSG_PEEK | MSG_DONTWAIT) != (ssize_t)sizeof bytes) return 0;
    struct reader head = {.at = bytes, .end = bytes + 4};
    if (bytes[4] != REQ_RENEW || get_u32(&head) != sizeof bytes - 4) return 0;
    struct frame frame = {.type = REQ_RENEW, .body = bytes + 5, .size = sizeof bytes - 5};
    recv(conn, bytes, sizeof bytes, MSG_DONTWAIT);
    handle_renew(conn, &frame);
    close(conn);
    return 1;
}

static void start_handler(int conn, const struct serving *serving, int signals) {
    if (renewed_at_once(conn)) return;
    pid_t pid = handler_count < MAX_HANDLERS ? fork() : -1;
    if (pid < 0 && is_init && asks_for_sweep(conn)) {
        make_room();
        pid = fork();
    }
    if (pid == 0) {
        for (size_t i = 0; i < handler_count; i++) close(handlers[i].conn);
        if (serving->listener >= 0) close(serving->listener);
        if (serving->control >= 0) close(serving->control);
        close(signals);
        _exit(serving->answer(conn));
    }
    if (pid < 0) {
        reply_error(conn, STAGE_PROCESS, handler_count < MAX_HANDLERS ? errno : EAGAIN,
                    "cannot start a process for the request");
        close(conn);
        return;
    }
    handler_pids[handler_count] = pid;
    handlers[handler_count++] = (struct handler){.conn = conn};
}

/* A handler notices by itself that its client left; one that cannot (stopped) is not waited for. */
static int64_t watch_clients(const struct pollfd *polls) {
    int64_t next = 0, now = now_ns();
    for (size_t i = 0; i < handler_count; i++) {
        if (polls[i].fd == handlers[i].conn && (polls[i].revents & (POLLHUP | POLLERR)))
            handlers[i].kill_at_ns = now + LINGER_NS;
        if (!handlers[i].kill_at_ns) continue;
        if (handlers[i].kill_at_ns <= now) {
            kill(handler_pids[i], SIGKILL);
            handlers[i].kill_at_ns = now + LINGER_NS;
        }
        if (!next || handlers[i].kill_at_ns < next) next = handlers[i].kill_at_ns;
    }
    return next;
}

/* One connection from the control socket; 0 when the owner is gone. */
static int take_from_control(const struct serving *serving, int signals) {
    char byte;
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof control.bytes};
    ssize_t got = recvmsg(serving->control, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (got < 0) return errno == EAGAIN || errno == EINTR || errno == EMFILE;
    if (got == 0) return 0;
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    if (head && head->cmsg_type == SCM_RIGHTS && head->cmsg_len == CMSG_LEN(sizeof(int))) {
        int conn;
        memcpy(&conn, CMSG_DATA(head), sizeof conn);
        start_handler(conn, serving, signals);
    }
    return 1;
}

/* True if a signal asks us to end. Inside a PID namespace only its outside may: no sender pid. */
static int take_signals(int signals) {
    struct signalfd_siginfo info;
    int end = 0;
    while (read(signals, &info, sizeof info) == (ssize_t)sizeof info)
        if (info.ssi_signo != SIGCHLD && (getpid() != 1 || info.ssi_pid == 0)) end = 1;
    return end;
}

static int open_signals(void) {
    sigset_t watched;
    sigemptyset(&watched);
    sigaddset(&watched, SIGCHLD);
    sigaddset(&watched, SIGTERM);
    sigaddset(&watched, SIGINT);
    sigaddset(&watched, SIGHUP);
    sigprocmask(SIG_BLOCK, &watched, NULL);
    return signalfd(-1, &watched, SFD_CLOEXEC | SFD_NONBLOCK);
}

/* A command that could speak to us would start others outside its own bounds. As PID 1 we see the
 * pid of whoever connects from inside; the owner, outside this PID namespace, has none here. */
static int comes_from_inside(int conn) {
    struct ucred peer = {0};
    socklen_t size = sizeof peer;
    if (getpid() != 1) return 0;
    return getsockopt(conn, SOL_SOCKET, SO_PEERCRED, &peer, &size) || peer.pid != 0;
}

static void take_from_listener(const struct serving *serving, int signals) {
    int conn = accept4(serving->listener, NULL, NULL, SOCK_CLOEXEC);
    if (conn >= 0 && comes_from_inside(conn)) close(conn);
    else if (conn >= 0) start_handler(conn, serving, signals);
    else if (errno != EAGAIN) nap_ns(1000000); /* out of descriptors: let one end first */
}

static int wait_ms(int64_t until_ns) {
    if (!until_ns) return -1;
    int64_t left = (until_ns - now_ns()) / 1000000 + 1;
    return left < 0 ? 0 : left > 3600000 ? 3600000 : (int)left;
}

/* poll() does not get the connections of clients already known to be gone: they would wake it. */
static size_t fill_polls(struct pollfd *polls, const struct serving *serving, int signals) {
    for (size_t i = 0; i < handler_count; i++)
        polls[i] = (struct pollfd){handlers[i].kill_at_ns ? -1 : handlers[i].conn, 0, 0};
    polls[handler_count] = (struct pollfd){signals, POLLIN, 0};
    polls[handler_count + 1] = (struct pollfd){serving->listener, POLLIN, 0};
    polls[handler_count + 2] = (struct pollfd){serving->control, POLLIN, 0};
    polls[handler_count + 3] = (struct pollfd){renewals[0], POLLIN, 0};
    return handler_count + 4;
}

static void take_renewals(void) {
    struct renewal renewal;
    while (read(renewals[0], &renewal, sizeof renewal) == (ssize_t)sizeof renewal) {
        if (renewal.lease_ns) lease_end_ns = now_ns() + renewal.lease_ns;
        if (renewal.lifetime_ns) lifetime_end_ns = now_ns() + renewal.lifetime_ns;
    }
}

static int64_t earlier(int64_t first_ns, int64_t second_ns) {
    return first_ns && (!second_ns || first_ns < second_ns) ? first_ns : second_ns;
}

int serve(const struct serving *serving) {
    static struct pollfd polls[MAX_HANDLERS + 4];
    int signals = open_signals();
    int going = signals >= 0 && pipe2(renewals, O_CLOEXEC | O_NONBLOCK) == 0;
    int64_t kill_at = 0, end_at = 0;
    is_init = getpid() == 1;
    handler_count = 0; /* in a server below another one (mux.c) these are the other one's */
    lifetime_end_ns = serving->lifetime_ns ? now_ns() + serving->lifetime_ns : 0;
    lease_end_ns = serving->lease_ns ? now_ns() + serving->lease_ns : 0;
    signal(SIGPIPE, SIG_IGN);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    prctl(PR_SET_DUMPABLE, 0);
    while (going) {
        end_at = earlier(lifetime_end_ns, lease_end_ns);
        if (end_at && now_ns() >= end_at) break;
        size_t count = fill_polls(polls, serving, signals);
        if (poll(polls, count, wait_ms(earlier(end_at, kill_at))) < 0 && errno != EINTR) break;
        kill_at = watch_clients(polls);
        if (polls[count - 4].revents && take_signals(signals)) break;
        if (polls[count - 3].revents) take_from_listener(serving, signals);
        if (polls[count - 2].revents) going = take_from_control(serving, signals);
        if (polls[count - 1].revents) take_renewals();
        reap();
    }
    int left = end_descendants(LAST_BOUND_NS, 0, NULL);
    /* Last: who finds no socket may take the sandbox for ended. */
    if (serving->socket_path) unlink(serving->socket_path);
    return left ? 75 : 0;
}
