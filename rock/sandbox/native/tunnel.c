/* One connection that mux.c carries over the stream: what may move on it, and when.
 *
 * A side sends at most WINDOW bytes of a stream that it has no credit for. Stream 0, the connection, waits
 * for the pipes; what a shell orders (kind s) waits for those that are not ordered.
 */
#define _GNU_SOURCE
#include "tunnel.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define WINDOW (256u * 1024)
#define ENOUGH_OUT (512u * 1024)
#define STARTED_BYTES 9 /* its size, type and pid */

void put_mux_frame(struct bytes *out, enum mux_type type, uint32_t id, int stream, const void *body,
                   size_t size) {
    struct writer head = {.size = 0};
    put_u32(&head, (uint32_t)(1 + 4 + (stream >= 0) + size));
    put_u8(&head, (uint8_t)type);
    put_u32(&head, id);
    if (stream >= 0) put_u8(&head, (uint8_t)stream);
    append(out, head.bytes, head.size);
    append(out, body, size);
}

void put_mux_number(struct bytes *out, enum mux_type type, uint32_t id, int stream, uint32_t number) {
    struct writer body = {.size = 0};
    put_u32(&body, number);
    put_mux_frame(out, type, id, stream, body.bytes, body.size);
}

static void close_stream(struct stream *stream) {
    if (stream->fd >= 0) close(stream->fd);
    stream->fd = NO_FD;
}

void free_tunnel(struct tunnel *tunnel) {
    for (int i = 0; i < tunnel->stream_count; i++) {
        close_stream(&tunnel->streams[i]);
        free(tunnel->streams[i].pending.data);
    }
    for (int i = 0; i < tunnel->given_count; i++) close(tunnel->given[i]);
    if (tunnel->listener >= 0) close(tunnel->listener);
    free(tunnel);
}

struct tunnel *make_tunnel(uint32_t id, int fd) {
    struct tunnel *tunnel = calloc(1, sizeof *tunnel);
    if (!tunnel) return NULL;
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    tunnel->id = id;
    tunnel->listener = NO_FD;
    tunnel->streams[0] = (struct stream){.fd = fd, .kind = 'c', .credit = WINDOW};
    tunnel->stream_count = 1;
    return tunnel;
}

/* The pipe that the client would have passed; the far end is what the server will get. */
int add_pipe(struct tunnel *tunnel, char kind) {
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

/* Passes on what is pending. The first bytes of a connection carry its descriptors. */
static void write_stream(struct bytes *out, struct tunnel *tunnel, int index) {
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
        put_mux_number(out, MUX_CREDIT, tunnel->id, index, stream->owed);
        stream->owed = 0;
    }
    if (stream->got_end && !left_in(&stream->pending) && stream->fd >= 0) {
        if (stream->kind == 'r') close_stream(stream);
        if (stream->kind == 'c') shutdown(stream->fd, SHUT_WR);
    }
}

int take_for_stream(struct bytes *out, struct tunnel *tunnel, const struct frame *frame,
                    struct reader *reader) {
    int index = get_u8(reader);
    if (reader->bad || index >= tunnel->stream_count) return -1;
    struct stream *stream = &tunnel->streams[index];
    if (frame->type == MUX_CREDIT) {
        stream->credit += get_u32(reader);
        return reader->bad || stream->credit > WINDOW ? -1 : 0;
    }
    size_t size = (size_t)(reader->end - reader->at);
    if (frame->type == MUX_END) stream->got_end = 1;
    else if (frame->type != MUX_DATA || left_in(&stream->pending) + size > WINDOW) return -1;
    else append(&stream->pending, reader->at, size);
    write_stream(out, tunnel, index);
    return 0;
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
static int read_stream(struct bytes *out, struct tunnel *tunnel, int index) {
    static unsigned char chunk[CHUNK];
    struct stream *stream = &tunnel->streams[index];
    while (stream->fd >= 0 && !stream->sent_end) {
        size_t size = stream->credit < CHUNK ? stream->credit : CHUNK;
        if (!size || left_in(out) > ENOUGH_OUT) return 1;
        ssize_t got = receive(tunnel, stream, chunk, size);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0 && errno == EAGAIN) return 0;
        if (got > 0) {
            stream->credit -= (uint32_t)got;
            put_mux_frame(out, MUX_DATA, tunnel->id, index, chunk, (size_t)got);
            continue;
        }
        stream->sent_end = 1;
        put_mux_frame(out, MUX_END, tunnel->id, index, NULL, 0);
        if (stream->kind != 'c') close_stream(stream);
    }
    return 0;
}

static int may_read(const struct bytes *out, const struct stream *stream) {
    return stream->fd >= 0 && stream->kind != 'r' && !stream->sent_end && stream->credit &&
           left_in(out) <= ENOUGH_OUT;
}

/* Whether all that the command has written to its ordinary pipes can go before what is ordered. */
static int pipes_flow(const struct bytes *out, const struct tunnel *tunnel) {
    for (int i = 1; i < tunnel->stream_count; i++) {
        const struct stream *stream = &tunnel->streams[i];
        if (stream->kind == 'w' && stream->fd >= 0 && !may_read(out, stream)) return 0;
    }
    return 1;
}

/* STARTED goes before what was written meanwhile: who waits for it need not read that yet. */
static void pass_started(struct bytes *out, struct tunnel *tunnel) {
    unsigned char reply[STARTED_BYTES];
    struct stream *stream = &tunnel->streams[0];
    ssize_t got = recv(stream->fd, reply, sizeof reply, MSG_PEEK);
    tunnel->has_begun = got >= 0;
    if (got < (ssize_t)sizeof reply || reply[4] != REP_STARTED) return;
    stream->credit -= (uint32_t)recv(stream->fd, reply, sizeof reply, 0);
    put_mux_frame(out, MUX_DATA, tunnel->id, 0, reply, sizeof reply);
}

static void pump(struct bytes *out, struct tunnel *tunnel) {
    int blocked = 0;
    if (!tunnel->has_begun) pass_started(out, tunnel);
    for (int i = 1; i < tunnel->stream_count; i++)
        if (tunnel->streams[i].kind == 'w') blocked |= read_stream(out, tunnel, i);
    for (int i = 1; i < tunnel->stream_count && !blocked; i++)
        if (tunnel->streams[i].kind == 's') blocked |= read_stream(out, tunnel, i);
    if (!blocked) read_stream(out, tunnel, 0);
}

/* One for each stream and one for the listener; how many. */
size_t tunnel_polls(const struct tunnel *tunnel, const struct bytes *out, struct pollfd *polls) {
    int flows = pipes_flow(out, tunnel), i = 0;
    for (; i < tunnel->stream_count; i++) {
        const struct stream *stream = &tunnel->streams[i];
        short events = 0;
        int goes = stream->kind == 'w' || flows || (!i && !tunnel->has_begun);
        if (goes && may_read(out, stream)) events |= POLLIN;
        if (left_in(&stream->pending)) events |= POLLOUT;
        polls[i] = (struct pollfd){events ? stream->fd : NO_FD, events, 0};
    }
    polls[i++] = (struct pollfd){tunnel->listener, POLLIN, 0};
    return (size_t)i;
}

void serve_streams(struct bytes *out, struct tunnel *tunnel, const struct pollfd *polls) {
    int readable = 0;
    for (int i = 0; i < tunnel->stream_count; i++) {
        if (polls[i].revents && left_in(&tunnel->streams[i].pending)) write_stream(out, tunnel, i);
        if (polls[i].revents) readable = 1;
    }
    if (readable) pump(out, tunnel);
}

int is_over(const struct tunnel *tunnel) {
    if (!tunnel->streams[0].sent_end || tunnel->listener >= 0) return 0;
    if (tunnel->is_raw) return tunnel->streams[0].got_end && !left_in(&tunnel->streams[0].pending);
    for (int i = 1; i < tunnel->stream_count; i++)
        if (tunnel->streams[i].kind != 'r' && !tunnel->streams[i].sent_end) return 0;
    return 1;
}
