/* The protocol, and reading and writing it.
 *
 * A connection is a unix stream socket. It carries frames in both directions:
 *
 *     u32 size of what follows | u8 type | body
 *
 * Integers are little-endian. A text or byte string is a u32 length and its bytes. Descriptors
 * travel with the first byte of a frame. `rock/sandbox/channel/frames.py` is the other end of this file:
 *
 *     EXEC    u32 timeout ms | u32 flags | text user | text cwd | u32 n, n texts argv |
 *             u32 n, n texts env | u32 n, n times (u32 resource, u64 value) | u32 rows | u32 columns;
 *             descriptors: [stdin] stdout stderr [status]. Flags: 1 stdin is given; 2 run it on a
 *             terminal between stdin and stdout; 4 it is a shell that reads SCRIPTs, and tells
 *             status (its descriptor 7) how they end; 8 say STARTED
 *     SIGNAL  u32 number            KILL, COMMIT, PING, MUX, LOOK  nothing
 *     RESIZE  u32 rows | u32 columns
 *     SCRIPT  text line | bytes script to the end: the script becomes what descriptor 9 of the shell
 *             holds, then the shell's program gets the line
 *     INTERRUPT u32 signal | u32 flags (1: the shell too, and first)
 *     READ    text path | u32 inline             MKDIR  text path | u32 mode | text owner
 *     WRITE   text path | u32 mode | text owner | u32 inline
 *             Inline: no descriptor crosses. READ is answered with FD, DATA.., DONE; WRITE is followed by
 *             DATA.., COMMIT.
 *     PUT     text target | text owner             GET  text source         LISTEN  u32 port
 *     SWEEP  nothing; DONE u32 processes ended | texts left      FREEZE  u32 1 stop, 0 go on; DONE u32 not so
 *     RENEW  u64 lease ms | u64 lifetime ms from now, 0: as it was
 *     COUNT  nothing; DONE u32 processes
 *     SWAP   u32 new layer | u32 n, n u32 layers below; DONE texts already in it     DROP, TREE  u32 layer
 *     ADOPT  u32 layer; descriptor: its mount
 *     PREPARE  text storage | texts below, descriptors: mount namespace, mountinfo; FD a root
 *     ATTACH  descriptors: root, mount namespace
 *     STORE  text file | text directory          UNSTORE  text directory
 *     DIR, FILE  text path | u32 mode   LINK  text path | text destination   DATA  bytes to the end
 *     STARTED u32 pid in the sandbox
 *     LOOK's  DONE u32 n, n times (u32 pid | u32 parent | u32 uid | u8 state | u64 CPU ms |
 *             u64 resident bytes | u32 n, n texts of its command)
 *     PONG    u32 protocol version | u32 pid
 *     RESULT  u8 end kind | u32 value | u64 duration ns | u32 OOM kills (all ones: unknown) |
 *             u8 1 if something could not be ended
 *     FD      u64 size              ERROR  u8 stage | u32 errno | text
 */
#define _GNU_SOURCE
#include "wire.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

static uint32_t load_u32(const unsigned char *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static void store_u32(unsigned char *p, uint32_t value) {
    for (int i = 0; i < 4; i++) p[i] = (unsigned char)(value >> (8 * i));
}

int write_all(int fd, const void *data, size_t size) {
    const char *at = data;
    while (size) {
        ssize_t done = write(fd, at, size);
        if (done < 0 && errno == EINTR) continue;
        if (done < 0) return -1;
        at += done;
        size -= (size_t)done;
    }
    return 0;
}

static int receive_all(int conn, void *data, size_t size) {
    char *at = data;
    while (size) {
        ssize_t done = recv(conn, at, size, 0);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) return -1;
        at += done;
        size -= (size_t)done;
    }
    return 0;
}

static void keep_descriptors(struct msghdr *message, struct frame *frame) {
    struct cmsghdr *head = CMSG_FIRSTHDR(message);
    if (!head || head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS) return;
    size_t count = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    if (count > MAX_PASSED_FDS) count = MAX_PASSED_FDS;
    memcpy(frame->fds, CMSG_DATA(head), count * sizeof(int));
    frame->fd_count = (int)count;
}

int read_frame(int conn, struct frame *frame) {
    unsigned char head[5];
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int) * MAX_PASSED_FDS)];
    } control;
    struct iovec part = {head, sizeof head};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof control.bytes};
    memset(frame, 0, sizeof *frame);
    ssize_t got;
    do {
        got = recvmsg(conn, &message, MSG_CMSG_CLOEXEC);
    } while (got < 0 && errno == EINTR);
    if (got <= 0) return got == 0 ? 0 : -1;
    keep_descriptors(&message, frame);
    if (got < (ssize_t)sizeof head &&
        receive_all(conn, head + got, sizeof head - (size_t)got))
        return -1;
    uint32_t size = load_u32(head);
    if (size < 1 || size > MAX_FRAME_BYTES) {
        errno = EMSGSIZE;
        return -1;
    }
    frame->type = head[4];
    frame->size = size - 1;
    frame->body = malloc(frame->size + 1);
    if (!frame->body) return -1;
    return receive_all(conn, frame->body, frame->size) ? -1 : 1;
}

int send_frame(int conn, unsigned char type, const void *body, size_t size, int pass_fd) {
    unsigned char head[5];
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec parts[2] = {{head, sizeof head}, {(void *)(uintptr_t)body, size}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    store_u32(head, (uint32_t)size + 1);
    head[4] = type;
    if (pass_fd >= 0) {
        memset(&control, 0, sizeof control);
        control.align.cmsg_level = SOL_SOCKET;
        control.align.cmsg_type = SCM_RIGHTS;
        control.align.cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(&control.align), &pass_fd, sizeof(int));
        message.msg_control = control.bytes;
        message.msg_controllen = sizeof control.bytes;
    }
    size_t left = sizeof head + size;
    while (left) {
        ssize_t done = sendmsg(conn, &message, MSG_NOSIGNAL);
        if (done < 0 && errno == EINTR) continue;
        if (done < 0) return -1;
        left -= (size_t)done;
        message.msg_control = NULL;
        message.msg_controllen = 0;
        for (int i = 0; i < 2; i++) {
            size_t taken = (size_t)done < parts[i].iov_len ? (size_t)done : parts[i].iov_len;
            parts[i].iov_base = (char *)parts[i].iov_base + taken;
            parts[i].iov_len -= taken;
            done -= (ssize_t)taken;
        }
    }
    return 0;
}

int reply_error(int conn, enum stage stage, int error, const char *text) {
    struct writer writer = {.size = 0};
    put_u8(&writer, (uint8_t)stage);
    put_u32(&writer, (uint32_t)error);
    put_text(&writer, text);
    return send_frame(conn, REP_ERROR, writer.bytes, writer.size, NO_FD);
}

struct reader reader_of(const struct frame *frame) {
    return (struct reader){frame->body, frame->body + frame->size, 0};
}

static int enough(struct reader *reader, size_t size) {
    if ((size_t)(reader->end - reader->at) < size) reader->bad = 1;
    return !reader->bad;
}

uint8_t get_u8(struct reader *reader) {
    return enough(reader, 1) ? *reader->at++ : 0;
}

uint32_t get_u32(struct reader *reader) {
    if (!enough(reader, 4)) return 0;
    uint32_t value = load_u32(reader->at);
    reader->at += 4;
    return value;
}

uint64_t get_u64(struct reader *reader) {
    uint64_t low = get_u32(reader);
    return low | (uint64_t)get_u32(reader) << 32;
}

const unsigned char *get_bytes(struct reader *reader, uint32_t *size) {
    *size = get_u32(reader);
    if (!enough(reader, *size)) {
        *size = 0;
        return reader->end;
    }
    const unsigned char *start = reader->at;
    reader->at += *size;
    return start;
}

char *get_text(struct reader *reader) {
    uint32_t size;
    const unsigned char *bytes = get_bytes(reader, &size);
    char *text = malloc((size_t)size + 1);
    if (!text) _exit(70);
    memcpy(text, bytes, size);
    text[size] = 0;
    if (memchr(text, 0, size)) reader->bad = 1;
    return text;
}

char **get_texts(struct reader *reader, uint32_t *count) {
    *count = get_u32(reader);
    /* Every text takes four bytes at least, so a large count with a short body is a lie. */
    if (!enough(reader, (size_t)*count * 4)) *count = 0;
    char **texts = calloc((size_t)*count + 1, sizeof *texts);
    if (!texts) _exit(70);
    for (uint32_t i = 0; i < *count; i++) texts[i] = get_text(reader);
    return texts;
}

static void put_raw(struct writer *writer, const void *data, size_t size) {
    if (size > sizeof writer->bytes - writer->size) size = sizeof writer->bytes - writer->size;
    memcpy(writer->bytes + writer->size, data, size);
    writer->size += size;
}

void put_u8(struct writer *writer, uint8_t value) {
    put_raw(writer, &value, 1);
}

void put_u32(struct writer *writer, uint32_t value) {
    unsigned char bytes[4];
    store_u32(bytes, value);
    put_raw(writer, bytes, 4);
}

void put_u64(struct writer *writer, uint64_t value) {
    put_u32(writer, (uint32_t)value);
    put_u32(writer, (uint32_t)(value >> 32));
}

void put_text(struct writer *writer, const char *text) {
    size_t room = sizeof writer->bytes - writer->size, size = strlen(text);
    size = room < 4 ? 0 : size > room - 4 ? room - 4 : size;
    put_u32(writer, (uint32_t)size);
    put_raw(writer, text, size);
}
