/* Many connections over one pair of byte streams, for clients that no descriptor can reach.
 *
 *     rock-init mux          the streams are stdin and stdout (of an exec of the engine)
 *     a MUX request          the streams are that request's own connection
 *
 * Descriptors do not cross, so each connection brings streams for the pipes that it would have passed;
 * here they become pipes again, and a server like the one of PID 1 (serve.c) gets them as always.
 * Frames are those of wire.c, with bodies
 *
 *     HELLO   u32 protocol version; the client's first frame, and the answer to it
 *     OPEN    u32 id | a kind for each pipe: r the command reads it, w it writes it, s it writes it
 *             and what it wrote to the others before must arrive before
 *     DATA    u32 id | u8 stream | bytes        END  u32 id | u8 stream: no more will come
 *     CREDIT  u32 id | u8 stream | u32 bytes that have been passed on
 *     CLOSE   u32 id: forget it, both ways
 *     ACCEPT  u32 id of a listener | u32 new id: somebody has connected to it
 *
 * Stream 0 is the connection, the pipes are 1, 2, ... A side sends at most WINDOW bytes of a stream that
 * it has no credit for, so one that nobody reads holds up nothing else. Stream 0 waits for the pipes: a
 * result never arrives before the output that it is the end of. STARTED waits for nothing.
 */
#define _GNU_SOURCE
#include "mux.h"

#include "bytes.h"
#include "tunnel.h"
#include "wire.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define MAX_TUNNELS 4000
#define TOO_MUCH_OUT (8u * 1024 * 1024)
#define ACCEPTED 0x80000000u

struct mux {
    int in, out, control;
    answering *answer;
    struct bytes received, to_send;
    struct tunnel *tunnels[MAX_TUNNELS];
    size_t count;
    uint32_t accepted;
    struct pollfd *polls;
};

/* CLOSE: there is none of this id, or no more. */
static void say_closed(struct mux *mux, uint32_t id) {
    put_mux_frame(&mux->to_send, MUX_CLOSE, id, -1, NULL, 0);
}

static void forget(struct mux *mux, size_t index) {
    free_tunnel(mux->tunnels[index]);
    mux->tunnels[index] = mux->tunnels[--mux->count];
}

static struct tunnel *add_tunnel(struct mux *mux, uint32_t id, int fd) {
    struct tunnel *tunnel = mux->count < MAX_TUNNELS ? make_tunnel(id, fd) : NULL;
    if (!tunnel) {
        close(fd);
        say_closed(mux, id);
        return NULL;
    }
    mux->tunnels[mux->count++] = tunnel;
    return tunnel;
}

static int give_connection(int control, int fd) {
    char byte = 'c';
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } room = {0};
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = room.bytes,
                             .msg_controllen = sizeof room.bytes};
    room.align.cmsg_level = SOL_SOCKET;
    room.align.cmsg_type = SCM_RIGHTS;
    room.align.cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(&room.align), &fd, sizeof fd);
    return sendmsg(control, &message, MSG_NOSIGNAL) == 1 ? 0 : -1;
}

/* -1 if the server has gone. */
static int open_tunnel(struct mux *mux, uint32_t id, const unsigned char *kinds, size_t count) {
    int pair[2], gone = 0;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair)) {
        say_closed(mux, id);
        return 0;
    }
    struct tunnel *tunnel = add_tunnel(mux, id, pair[0]);
    int failed = !tunnel;
    for (size_t i = 0; !failed && i < count; i++) failed = add_pipe(tunnel, (char)kinds[i]);
    if (!failed) gone = give_connection(mux->control, pair[1]);
    close(pair[1]);
    if (failed && tunnel) {
        say_closed(mux, id);
        forget(mux, mux->count - 1);
    }
    return gone;
}

static struct tunnel *find(const struct mux *mux, uint32_t id, size_t *index) {
    for (*index = 0; *index < mux->count; (*index)++)
        if (mux->tunnels[*index]->id == id) return mux->tunnels[*index];
    return NULL;
}

/* 0, or -1 for a client that does not keep the protocol, or without a server. */
static int take_frame(struct mux *mux, const struct frame *frame) {
    struct reader reader = reader_of(frame);
    uint32_t id = get_u32(&reader);
    size_t at;
    if (reader.bad) return -1;
    if (frame->type == MUX_HELLO) put_mux_frame(&mux->to_send, MUX_HELLO, PROTOCOL_VERSION, -1, NULL, 0);
    if (frame->type == MUX_HELLO) return 0;
    if (frame->type == MUX_OPEN) return open_tunnel(mux, id, reader.at, (size_t)(reader.end - reader.at));
    struct tunnel *tunnel = find(mux, id, &at);
    if (!tunnel) return 0; /* we have just closed it */
    if (frame->type == MUX_CLOSE) {
        forget(mux, at);
        return 0;
    }
    return take_for_stream(&mux->to_send, tunnel, frame, &reader);
}

static int take_frames(struct mux *mux) {
    for (;;) {
        const unsigned char *at = mux->received.data + mux->received.from;
        size_t size = left_in(&mux->received);
        if (size < 5) return 0;
        struct frame frame = {.body = (unsigned char *)(uintptr_t)at, .size = 4};
        struct reader head = reader_of(&frame);
        uint32_t frame_size = get_u32(&head);
        if (frame_size < 1 || frame_size > MAX_FRAME_BYTES) return -1;
        if (size < frame_size + 4u) return 0;
        frame = (struct frame){.type = at[4], .body = (unsigned char *)(uintptr_t)at + 5, .size = frame_size - 1};
        mux->received.from += frame_size + 4u;
        if (take_frame(mux, &frame)) return -1;
    }
}

static void take_callers(struct mux *mux, struct tunnel *listener) {
    int fd;
    while ((fd = accept4(listener->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0) {
        uint32_t id = ACCEPTED | ++mux->accepted;
        struct tunnel *tunnel = add_tunnel(mux, id, fd);
        if (!tunnel) return;
        tunnel->is_raw = tunnel->has_begun = 1;
        put_mux_number(&mux->to_send, MUX_ACCEPT, listener->id, -1, id);
    }
}

static nfds_t fill_polls(struct mux *mux) {
    nfds_t count = 2;
    /* A client that does not read what it is answered is not listened to for a while. */
    mux->polls[0] = (struct pollfd){left_in(&mux->to_send) > TOO_MUCH_OUT ? NO_FD : mux->in, POLLIN, 0};
    mux->polls[1] = (struct pollfd){left_in(&mux->to_send) ? mux->out : NO_FD, POLLOUT, 0};
    for (size_t t = 0; t < mux->count; t++)
        count += tunnel_polls(mux->tunnels[t], &mux->to_send, mux->polls + count);
    return count;
}

static void serve_polls(struct mux *mux) {
    size_t known = mux->count; /* callers that are taken now have no polls yet */
    const struct pollfd *at = mux->polls + 2;
    for (size_t t = 0; t < known; t++) {
        struct tunnel *tunnel = mux->tunnels[t];
        serve_streams(&mux->to_send, tunnel, at);
        at += tunnel->stream_count;
        if ((at++)->revents) take_callers(mux, tunnel);
    }
    for (size_t t = mux->count; t-- > 0;) {
        if (!is_over(mux->tunnels[t])) continue;
        say_closed(mux, mux->tunnels[t]->id);
        forget(mux, t);
    }
}

static int flush_out(struct mux *mux) {
    while (left_in(&mux->to_send)) {
        ssize_t done = write(mux->out, mux->to_send.data + mux->to_send.from, left_in(&mux->to_send));
        if (done < 0 && errno == EINTR) continue;
        if (done < 0) return errno == EAGAIN ? 0 : -1;
        mux->to_send.from += (size_t)done;
    }
    return 0;
}

static int read_in(struct mux *mux) {
    static unsigned char chunk[2 * CHUNK];
    ssize_t got = read(mux->in, chunk, sizeof chunk);
    if (got < 0) return errno == EAGAIN || errno == EINTR ? 0 : -1;
    if (got == 0) return -1;
    append(&mux->received, chunk, (size_t)got);
    return take_frames(mux);
}

/* Received descriptors must never land on 0, 1 or 2. */
static void give_up(int fd) {
    int nothing = fd <= 2 ? open("/dev/null", O_RDWR | O_CLOEXEC) : NO_FD;
    if (nothing < 0) close(fd);
    else dup2(nothing, fd);
    if (nothing >= 0) close(nothing);
}

static pid_t start_server(struct mux *mux) {
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair)) return -1;
    pid_t pid = fork();
    if (pid == 0) {
        struct serving serving = {.answer = mux->answer, .listener = NO_FD, .control = pair[1]};
        close(pair[0]);
        give_up(mux->in);
        give_up(mux->out);
        fcntl(pair[1], F_SETFL, O_NONBLOCK);
        _exit(serve(&serving));
    }
    close(pair[1]);
    mux->control = pair[0];
    return pid;
}

int run_mux(int in, int out, answering *answer) {
    static struct mux mux;
    mux.in = in;
    mux.out = out;
    mux.answer = answer;
    mux.polls = calloc(2 + (size_t)MAX_TUNNELS * TUNNEL_POLLS, sizeof *mux.polls);
    if (!mux.polls || start_server(&mux) < 0) return 71;
    signal(SIGPIPE, SIG_IGN);
    prctl(PR_SET_DUMPABLE, 0);
    fcntl(in, F_SETFL, fcntl(in, F_GETFL) | O_NONBLOCK);
    fcntl(out, F_SETFL, fcntl(out, F_GETFL) | O_NONBLOCK);
    while (!flush_out(&mux)) {
        nfds_t count = fill_polls(&mux);
        if (poll(mux.polls, count, -1) < 0 && errno != EINTR) break;
        serve_polls(&mux);
        if (mux.polls[0].revents && read_in(&mux)) break;
    }
    close(mux.control); /* the server ends with it, and with the server every command */
    while (wait(NULL) > 0 || errno == EINTR) continue;
    return 0;
}
