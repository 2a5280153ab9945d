/* The protocol: its numbers, its frames and bounded readers. wire.c says what is in a body. */
#ifndef ROCK_WIRE_H
#define ROCK_WIRE_H

#include <stddef.h>
#include <stdint.h>

#define PROTOCOL_VERSION 2
#define MAX_FRAME_BYTES (16u * 1024 * 1024)
#define MAX_PASSED_FDS 4
#define NO_FD (-1)

/* What a client sends. Each connection carries one request and what belongs to it. */
enum request_type {
    REQ_PING = 'P',
    REQ_EXEC = 'X',   /* then any number of KILL and SIGNAL while it runs */
    REQ_KILL = 'K',
    REQ_SIGNAL = 'S',
    REQ_RESIZE = 'r', /* of a command with a terminal */
    REQ_SCRIPT = 's', /* the next script of a shell */
    REQ_INTERRUPT = 'i', /* signal a shell and what its present script has started */
    REQ_READ = 'O',   /* open a regular file; answered with its descriptor */
    REQ_WRITE = 'W',  /* answered with a descriptor to fill, then COMMIT */
    REQ_COMMIT = 'C',
    REQ_MKDIR = 'M',
    REQ_PUT = 'U',    /* then DIR, FILE + DATA.., LINK, and COMMIT */
    REQ_GET = 'G',    /* answered with DIR, FILE + DATA.., LINK, and DONE */
    REQ_LISTEN = 'L',
    REQ_SWEEP = 'Z',  /* end every process */
    REQ_FREEZE = 'H', /* stop every process, or let them go on */
    REQ_COUNT = 'V',  /* how many there are of commands */
    REQ_RENEW = 'B',  /* the owner is there: go on for so long */
    REQ_SWAP = 'N',   /* a new root directory above layers; layers.c has these six */
    REQ_DROP = 'Q',
    REQ_TREE = 'T',
    REQ_ADOPT = 'A',
    REQ_PREPARE = 'Y',
    REQ_ATTACH = 'J',
    REQ_STORE = 'j',  /* a bounded place for layers; storage.c */
    REQ_UNSTORE = 'k',
    REQ_LOOK = 'g',   /* which processes there are */
    REQ_MUX = 'm',    /* from now on this connection carries many; see mux.c */
};

/* Entries of a tree, in both directions. */
enum entry_type { ENTRY_DIR = 'd', ENTRY_FILE = 'f', ENTRY_DATA = 'b', ENTRY_LINK = 'l' };

/* What the helper answers. */
enum reply_type {
    REP_PONG = 'p',
    REP_STARTED = 'B', /* the program runs; its result follows */
    REP_RESULT = 'R',
    REP_FD = 'F',
    REP_DONE = 'D',
    REP_ERROR = 'E',
    REP_LOST = 'I', /* the supervisor of this command was killed from inside the sandbox */
};

enum end_kind { END_EXITED = 1, END_SIGNALED = 2, END_TIMED_OUT = 3, END_KILLED = 4 };

/* Which step of a request failed; the number after it is an errno. */
enum stage {
    STAGE_REQUEST = 1,
    STAGE_USER = 2,
    STAGE_CWD = 3,
    STAGE_PROGRAM = 4,
    STAGE_PROCESS = 5,
    STAGE_FILE = 6,
    STAGE_LISTEN = 7,
    STAGE_LAYER = 8,
};

struct frame {
    unsigned char type;
    unsigned char *body;
    uint32_t size;
    int fds[MAX_PASSED_FDS];
    int fd_count;
};
struct reader {
    const unsigned char *at, *end;
    int bad;
};
struct writer {
    unsigned char bytes[8192];
    size_t size;
};
int read_frame(int conn, struct frame *frame); /* 1 got one, 0 closed, -1 error */
int send_frame(int conn, unsigned char type, const void *body, size_t size, int pass_fd);
int reply_error(int conn, enum stage stage, int error, const char *text);
int write_all(int fd, const void *data, size_t size);
struct reader reader_of(const struct frame *frame);
uint8_t get_u8(struct reader *reader);
uint32_t get_u32(struct reader *reader);
uint64_t get_u64(struct reader *reader);
char *get_text(struct reader *reader); /* NUL-terminated copy; a NUL inside makes it bad */
char **get_texts(struct reader *reader, uint32_t *count);
const unsigned char *get_bytes(struct reader *reader, uint32_t *size);
void put_u8(struct writer *writer, uint8_t value);
void put_u32(struct writer *writer, uint32_t value);
void put_u64(struct writer *writer, uint64_t value);
void put_text(struct writer *writer, const char *text);

#endif
