/* One connection that mux.c carries over the stream: what may move on it, and when. */
#ifndef ROCK_TUNNEL_H
#define ROCK_TUNNEL_H

#include "bytes.h"
#include "wire.h"

#include <poll.h>
#include <stddef.h>
#include <stdint.h>

#define MAX_STREAMS (MAX_PASSED_FDS + 1)
#define TUNNEL_POLLS (MAX_STREAMS + 1)
#define CHUNK (32u * 1024)

enum mux_type {
    MUX_HELLO = 'h',
    MUX_OPEN = 'O',
    MUX_DATA = 'D',
    MUX_END = 'E',
    MUX_CREDIT = 'C',
    MUX_CLOSE = 'X',
    MUX_ACCEPT = 'A',
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
/* Frames to the client; a frame without a stream has -1. `out` is what waits to be sent to it. */
void put_mux_frame(struct bytes *out, enum mux_type type, uint32_t id, int stream, const void *body,
                   size_t size);
void put_mux_number(struct bytes *out, enum mux_type type, uint32_t id, int stream, uint32_t number);

struct tunnel *make_tunnel(uint32_t id, int fd); /* its stream 0 is `fd`; NULL without memory */
void free_tunnel(struct tunnel *tunnel);
int add_pipe(struct tunnel *tunnel, char kind);
int take_for_stream(struct bytes *out, struct tunnel *tunnel, const struct frame *frame,
                    struct reader *reader); /* 0, or -1 for a client that does not keep the protocol */
size_t tunnel_polls(const struct tunnel *tunnel, const struct bytes *out, struct pollfd *polls);
void serve_streams(struct bytes *out, struct tunnel *tunnel, const struct pollfd *polls);
int is_over(const struct tunnel *tunnel);

#endif
