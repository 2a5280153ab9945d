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
#include "rock_init.h"

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
#define MAX_STREAMS (MAX_PASSED_FDS + 1)
#define WINDOW (256u * 1024)
#define CHUNK (32u * 1024)
#define ENOUGH_OUT (512u * 1024)
#define TOO_MUCH_OUT (8u * 1024 * 1024)
#define ACCEPTED 0x80000000u
#define STARTED_BYTES 9 /* its size, type and pid */

enum mux_type {
    MUX_HELLO = 'h',
    MUX_OPEN = 'O',
    MUX_DATA = 'D',
    MUX_END = 'E',
    MUX_CREDIT = 'C',
    MUX_CLOSE = 'X',
    MUX_ACCEPT = 'A',
};
struct bytes {
    unsigned char *data;
    size_t from, to, room;
};
struct stream {
    int fd;
    char kind;            /* 'c' the connection itself, or as in OPEN */
    uint32_t credit;      /* what we may still send */
    uint32_t owed;        /* what we have passed on and not yet said so */
    int sent_end, got_end;
    struct bytes pending; /* for fd */
};
struct tunnel {
    uint32_t id;
    int is_raw;           /* a connection accepted by a listener, not one to the server */
    int has_begun;        /* the first reply was seen */
    int listener;
    int given[MAX_PASSED_FDS], given_count; /* go with the first bytes */
    struct stream streams[MAX_STREAMS];
    int stream_count;
};
struct mux {
    int in, out, control;
    struct bytes received, to_send;
    struct tunnel *tunnels[MAX_TUNNELS];
    size_t count;
    uint32_t accepted;
    struct pollfd *polls;
};

static void append(struct bytes *bytes, const void *data, size_t size) {
    if (!size) return; /* memcpy wants real pointers, also for nothing */
    if (bytes->from == bytes->to) bytes->from = bytes->to = 0;
    if (bytes->to + size > bytes->room && bytes->from) {
        memmove(bytes->data, bytes->data + bytes->from, bytes->to - bytes->from);
        bytes->to -= bytes->from;
        bytes->from = 0;
    }
    if (bytes->to + size > bytes->room) {
        bytes->room = (bytes->to + size) * 2;
        bytes->data = realloc(bytes->data, bytes->room);
        if (!bytes->data) _exit(70);
    }
    memcpy(bytes->data + bytes->to, data, size);
    bytes->to += size;
}

static size_t left_in(const struct bytes *bytes) {
    return bytes->to - bytes->from;
}

static void send_mux(struct mux *mux, enum mux_type type, uint32_t id, int stream, const void *body,
                     size_t size) {
    struct writer head = {.size = 0};
    put_u32(&head, (uint32_t)(1 + 4 + (stream >= 0) + size));
    put_u8(&head, (uint8_t)type);
    put_u32(&head, id);
    if (stream >= 0) put_u8(&head, (uint8_t)stream);
    append(&mux->to_send, head.bytes, head.size);
    append(&mux->to_send, body, size);
}

static void send_number(struct mux *mux, enum mux_type type, uint32_t id, int stream,
                        uint32_t number) {
    struct writer body = {.size = 0};
    put_u32(&body, number);
    send_mux(mux, type, id, stream, body.bytes, body.size);
}

static void close_stream(struct stream *stream) {
    if (stream->fd >= 0) close(stream->fd);
    stream->fd = NO_FD;
}

static void forget(struct mux *mux, size_t index) {
    struct tunnel *tunnel = mux->tunnels[index];
    for (int i = 0; i < tunnel->stream_count; i++) {
        close_stream(&tunnel->streams[i]);
        free(tunnel->streams[i].pending.data);
    }
    for (int i = 0; i < tunnel->given_count; i++) close(tunnel->given[i]);
    if (tunnel->listener >= 0) close(tunnel->listener);
    free(tunnel);
    mux->tunnels[index] = mux->tunnels[--mux->count];
}

static struct tunnel *add_tunnel(struct mux *mux, uint32_t id, int fd) {
    struct tunnel *tunnel = mux->count < MAX_TUNNELS ? calloc(1, sizeof *tunnel) : NULL;
    if (!tunnel) {
        close(fd);
        send_mux(mux, MUX_CLOSE, id, -1, NULL, 0);
        return NULL;
    }
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    tunnel->id = id;
    tunnel->listener = NO_FD;
    tunnel->streams[0] = (struct stream){.fd = fd, .kind = 'c', .credit = WINDOW};
    tunnel->stream_count = 1;
    mux->tunnels[mux->count++] = tunnel;
    return tunnel;
}

/* The pipe that the client would have passed; the far end is what the server will get. */
static int add_pipe(struct tunnel *tunnel, char kind) {
    int ends[2];
    if ((kind != 'r' && kind != 'w' && kind != 's') || tunnel->stream_count == MAX_STREAMS ||
        pipe2(ends, O_CLOEXEC))
        return -1;
    int ours = kind == 'r' ? ends[1] : ends[0], theirs = kind == 'r' ? ends[0] : ends[1];
    fcntl(ours, F_SETFL, fcntl(ours, F_GETFL) | O_NONBLOCK);
    tunnel->streams[tunnel->stream_count++] = (struct stream){.fd = ours, .kind = kind, .credit = WINDOW};
    tunnel->given[tunnel->given_count++] = theirs;
    return 0;
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
        send_mux(mux, MUX_CLOSE, id, -1, NULL, 0);
        return 0;
    }
    struct tunnel *tunnel = add_tunnel(mux, id, pair[0]);
    int failed = !tunnel;
    for (size_t i = 0; !failed && i < count; i++) failed = add_pipe(tunnel, (char)kinds[i]);
    if (!failed) gone = give_connection(mux->control, pair[1]);
    close(pair[1]);
    if (failed && tunnel) {
        send_mux(mux, MUX_CLOSE, id, -1, NULL, 0);
        forget(mux, mux->count - 1);
    }
    return gone;
}

/* Passes on what is pending. The first bytes of a connection carry its descriptors. */
static void write_stream(struct mux *mux, struct tunnel *tunnel, int index) {
    struct stream *stream = &tunnel->streams[index];
    while (left_in(&stream->pending) && stream->fd >= 0) {
        struct iovec part = {stream->pending.data + stream->pending.from, left_in(&stream->pending)};
        char room[CMSG_SPACE(sizeof(int) * MAX_PASSED_FDS)] = {0};
        struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
        int carries = index == 0 && tunnel->given_count;
        if (carries) {
            size_t size = sizeof(int) * (size_t)tunnel->given_count;
            message.msg_control = room;
            message.msg_controllen = CMSG_SPACE(size);
            struct cmsghdr *head = CMSG_FIRSTHDR(&message);
            head->cmsg_level = SOL_SOCKET;
            head->cmsg_type = SCM_RIGHTS;
            head->cmsg_len = CMSG_LEN(size);
            memcpy(CMSG_DATA(head), tunnel->given, size);
        }
        ssize_t done = stream->kind == 'c' ? sendmsg(stream->fd, &message, MSG_NOSIGNAL)
                                           : write(stream->fd, part.iov_base, part.iov_len);
        if (done < 0 && errno == EINTR) continue;
        if (done < 0 && errno == EAGAIN) break;
        if (done < 0) { /* nobody reads it any more: what comes is dropped, and paid for */
            done = (ssize_t)part.iov_len;
            if (stream->kind == 'r') close_stream(stream);
        }
        if (carries) {
            for (int i = 0; i < tunnel->given_count; i++) close(tunnel->given[i]);
            tunnel->given_count = 0;
        }
        stream->pending.from += (size_t)done;
        stream->owed += (uint32_t)done;
    }
    if (stream->fd < 0) {
        stream->owed += (uint32_t)left_in(&stream->pending);
        stream->pending.from = stream->pending.to;
    }
    if (stream->owed && (stream->owed >= WINDOW / 4 || !left_in(&stream->pending))) {
        send_number(mux, MUX_CREDIT, tunnel->id, index, stream->owed);
        stream->owed = 0;
    }
    if (stream->got_end && !left_in(&stream->pending) && stream->fd >= 0) {
        if (stream->kind == 'r') close_stream(stream);
        if (stream->kind == 'c') shutdown(stream->fd, SHUT_WR);
    }
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
    if (frame->type == MUX_HELLO) send_mux(mux, MUX_HELLO, PROTOCOL_VERSION, -1, NULL, 0);
    if (frame->type == MUX_HELLO) return 0;
    if (frame->type == MUX_OPEN) return open_tunnel(mux, id, reader.at, (size_t)(reader.end - reader.at));
    struct tunnel *tunnel = find(mux, id, &at);
    if (!tunnel) return 0; /* we have just closed it */
    if (frame->type == MUX_CLOSE) {
        forget(mux, at);
        return 0;
    }
    int index = get_u8(&reader);
    if (reader.bad || index >= tunnel->stream_count) return -1;
    struct stream *stream = &tunnel->streams[index];
    if (frame->type == MUX_CREDIT) {
        stream->credit += get_u32(&reader);
        return reader.bad || stream->credit > WINDOW ? -1 : 0;
    }
    size_t size = (size_t)(reader.end - reader.at);
    if (frame->type == MUX_END) stream->got_end = 1;
    else if (frame->type != MUX_DATA || left_in(&stream->pending) + size > WINDOW) return -1;
    else append(&stream->pending, reader.at, size);
    write_stream(mux, tunnel, index);
    return 0;
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

/* Bytes of a connection may bring a listener with them. */
static ssize_t receive(struct tunnel *tunnel, struct stream *stream, void *data, size_t size) {
    char room[CMSG_SPACE(sizeof(int))];
    struct iovec part = {data, size};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = room,
                             .msg_controllen = sizeof room};
    if (stream->kind != 'c') return read(stream->fd, data, size);
    ssize_t got = recvmsg(stream->fd, &message, MSG_CMSG_CLOEXEC);
    struct cmsghdr *head = got > 0 ? CMSG_FIRSTHDR(&message) : NULL;
    if (head && head->cmsg_type == SCM_RIGHTS) {
        if (tunnel->listener >= 0) close(tunnel->listener);
        memcpy(&tunnel->listener, CMSG_DATA(head), sizeof(int));
        fcntl(tunnel->listener, F_SETFL, O_NONBLOCK);
    }
    return got;
}

/* Sends what can be read now. True if something may be left for want of credit or room. */
static int read_stream(struct mux *mux, struct tunnel *tunnel, int index) {
    static unsigned char chunk[CHUNK];
    struct stream *stream = &tunnel->streams[index];
    while (stream->fd >= 0 && !stream->sent_end) {
        size_t size = stream->credit < CHUNK ? stream->credit : CHUNK;
        if (!size || left_in(&mux->to_send) > ENOUGH_OUT) return 1;
        ssize_t got = receive(tunnel, stream, chunk, size);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0 && errno == EAGAIN) return 0;
        if (got > 0) {
            stream->credit -= (uint32_t)got;
            send_mux(mux, MUX_DATA, tunnel->id, index, chunk, (size_t)got);
            continue;
        }
        stream->sent_end = 1;
        send_mux(mux, MUX_END, tunnel->id, index, NULL, 0);
        if (stream->kind != 'c') close_stream(stream);
    }
    return 0;
}

static int may_read(const struct mux *mux, const struct stream *stream) {
    return stream->fd >= 0 && stream->kind != 'r' && !stream->sent_end && stream->credit &&
           left_in(&mux->to_send) <= ENOUGH_OUT;
}

/* Whether all that the command has written to its ordinary pipes can go before what is ordered. */
static int pipes_flow(const struct mux *mux, const struct tunnel *tunnel) {
    for (int i = 1; i < tunnel->stream_count; i++) {
        const struct stream *stream = &tunnel->streams[i];
        if (stream->kind == 'w' && stream->fd >= 0 && !may_read(mux, stream)) return 0;
    }
    return 1;
}

/* STARTED goes before what was written meanwhile: who waits for it need not read that yet. */
static void pass_started(struct mux *mux, struct tunnel *tunnel) {
    unsigned char reply[STARTED_BYTES];
    struct stream *stream = &tunnel->streams[0];
    ssize_t got = recv(stream->fd, reply, sizeof reply, MSG_PEEK);
    tunnel->has_begun = got >= 0;
    if (got < (ssize_t)sizeof reply || reply[4] != REP_STARTED) return;
    stream->credit -= (uint32_t)recv(stream->fd, reply, sizeof reply, 0);
    send_mux(mux, MUX_DATA, tunnel->id, 0, reply, sizeof reply);
}

static void pump(struct mux *mux, struct tunnel *tunnel) {
    int blocked = 0;
    if (!tunnel->has_begun) pass_started(mux, tunnel);
    for (int i = 1; i < tunnel->stream_count; i++)
        if (tunnel->streams[i].kind == 'w') blocked |= read_stream(mux, tunnel, i);
    for (int i = 1; i < tunnel->stream_count && !blocked; i++)
        if (tunnel->streams[i].kind == 's') blocked |= read_stream(mux, tunnel, i);
    if (!blocked) read_stream(mux, tunnel, 0);
}

static void take_callers(struct mux *mux, struct tunnel *listener) {
    int fd;
    while ((fd = accept4(listener->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0) {
        uint32_t id = ACCEPTED | ++mux->accepted;
        struct tunnel *tunnel = add_tunnel(mux, id, fd);
        if (!tunnel) return;
        tunnel->is_raw = tunnel->has_begun = 1;
        send_number(mux, MUX_ACCEPT, listener->id, -1, id);
    }
}

static int is_over(const struct tunnel *tunnel) {
    if (!tunnel->streams[0].sent_end || tunnel->listener >= 0) return 0;
    if (tunnel->is_raw) return tunnel->streams[0].got_end && !left_in(&tunnel->streams[0].pending);
    for (int i = 1; i < tunnel->stream_count; i++)
        if (tunnel->streams[i].kind != 'r' && !tunnel->streams[i].sent_end) return 0;
    return 1;
}

static nfds_t fill_polls(struct mux *mux) {
    nfds_t count = 2;
    /* A client that does not read what it is answered is not listened to for a while. */
    mux->polls[0] = (struct pollfd){left_in(&mux->to_send) > TOO_MUCH_OUT ? NO_FD : mux->in, POLLIN, 0};
    mux->polls[1] = (struct pollfd){left_in(&mux->to_send) ? mux->out : NO_FD, POLLOUT, 0};
    for (size_t t = 0; t < mux->count; t++) {
        struct tunnel *tunnel = mux->tunnels[t];
        int flows = pipes_flow(mux, tunnel);
        for (int i = 0; i < tunnel->stream_count; i++) {
            struct stream *stream = &tunnel->streams[i];
            short events = 0;
            int goes = stream->kind == 'w' || flows || (!i && !tunnel->has_begun);
            if (goes && may_read(mux, stream)) events |= POLLIN;
            if (left_in(&stream->pending)) events |= POLLOUT;
            mux->polls[count++] = (struct pollfd){events ? stream->fd : NO_FD, events, 0};
        }
        mux->polls[count++] = (struct pollfd){tunnel->listener, POLLIN, 0};
    }
    return count;
}

static void serve_polls(struct mux *mux) {
    size_t known = mux->count; /* callers that are taken now have no polls yet */
    const struct pollfd *at = mux->polls + 2;
    for (size_t t = 0; t < known; t++) {
        struct tunnel *tunnel = mux->tunnels[t];
        int readable = 0;
        for (int i = 0; i < tunnel->stream_count; i++, at++) {
            if (at->revents && left_in(&tunnel->streams[i].pending)) write_stream(mux, tunnel, i);
            if (at->revents) readable = 1;
        }
        if (readable) pump(mux, tunnel);
        if ((at++)->revents) take_callers(mux, tunnel);
    }
    for (size_t t = mux->count; t-- > 0;) {
        if (!is_over(mux->tunnels[t])) continue;
        send_mux(mux, MUX_CLOSE, mux->tunnels[t]->id, -1, NULL, 0);
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
        struct serving serving = {.listener = NO_FD, .control = pair[1]};
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

int run_mux(int in, int out) {
    static struct mux mux;
    mux.in = in;
    mux.out = out;
    mux.polls = calloc(2 + (size_t)MAX_TUNNELS * (MAX_STREAMS + 1), sizeof *mux.polls);
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
