/* rock-init: what its files share. Read main.c first, then wire.c for the protocol. */
#ifndef ROCK_INIT_H
#define ROCK_INIT_H

#include <poll.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

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

/* wire.c: frames, descriptors and bounded readers. */
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

/* account.c: users of the sandbox, by its own /etc/passwd. */
struct account {
    int given; /* 0: keep the helper's identity */
    uid_t uid;
    gid_t gid;
    gid_t groups[64];
    size_t group_count;
};
int find_account(const char *name, struct account *account); /* 0, or an errno */
int become_account(const struct account *account);           /* 0, or an errno */
int own(int fd, const struct account *account);              /* chown, if that changes anything */

/* processes.c: time, children, and ending them. */
int64_t now_ns(void);
void nap_ns(long nanoseconds);
int signal_children(const pid_t *spared, size_t spared_count);
size_t list_descendants(pid_t root, pid_t *found, size_t room, const pid_t *spared,
                        size_t spared_count); /* without the spared ones and what is below them */
int end_descendants(int64_t bound_ns, pid_t leader, int *leader_status); /* how many tries failed */
void keep_oom_counter(int fd); /* where oom_kills() looks, if this sandbox cannot see its own */
long long oom_kills(void); /* of this cgroup so far, or -1 when it cannot be known */

/* harden.c: what every command loses before it starts. */
void drop_bounding_set(void);
int drop_privileges(void); /* 0, or an errno: no new privileges, no capabilities, no odd calls */

/* attend.c: what a supervisor does for a terminal or a shell besides waiting for it. */
#define MAX_SPARED 1024
#define ATTENDED_POLLS 3
struct attended {
    int terminal, master; /* the two ends of a terminal, or NO_FD */
    int in, out;          /* the client's pipes to and from the terminal; NO_FD when closed */
    unsigned char typed[4096], shown[65536];
    size_t typed_from, typed_to, shown_from, shown_to;
    int script, script_out, trigger; /* a shell's script, its read-only end, and what starts it */
    pid_t spared[MAX_SPARED]; /* what earlier scripts of the shell left running */
    size_t spared_count;
};
int open_terminal(struct attended *attended, const int stdio[3], const struct account *owner,
                  uint16_t rows, uint16_t columns);
int take_terminal(const struct attended *attended); /* in the command: it becomes its terminal */
int open_script(struct attended *attended, int *program);
int take_script(const struct attended *attended, int status);
void close_given(const int stdio[3], int status);
size_t attend_polls(const struct attended *attended, struct pollfd *polls);
void attend_terminal(struct attended *attended, const struct pollfd *polls);
void attend_message(struct attended *attended, const struct frame *frame, pid_t leader);
void drain_terminal(struct attended *attended);

/* The handlers: each runs in a process of its own, answers on `conn` and returns its exit code. */
int handle_exec(int conn, const struct frame *frame);
int handle_read(int conn, const struct frame *frame);
int handle_write(int conn, const struct frame *frame);
int handle_mkdir(int conn, const struct frame *frame);
int handle_put(int conn, const struct frame *frame);
int handle_get(int conn, const struct frame *frame);
int handle_listen(int conn, const struct frame *frame);
int handle_look(int conn, const struct frame *frame); /* look.c */
int handle_sweep(int conn, const struct frame *frame);
int handle_freeze(int conn, const struct frame *frame);
int handle_count(int conn, const struct frame *frame);
int handle_swap(int conn, const struct frame *frame);
int handle_drop(int conn, const struct frame *frame);
int handle_tree(int conn, const struct frame *frame);
int handle_adopt(int conn, const struct frame *frame);
int handle_prepare(int conn, const struct frame *frame);
int handle_attach(int conn, const struct frame *frame);
int handle_store(int conn, const struct frame *frame);
int handle_unstore(int conn, const struct frame *frame);
void keep_own_mounts(void); /* storage.c: of the keeper, which alone may STORE */

/* files.c, for tree.c too. */
int make_parents(const char *path, const struct account *owner); /* a directory fd, or -1 */
const char *last_component(const char *path);
int usable_name(const char *name); /* not "", "." or ".." */
int fail_file(int conn, int error);

/* serve.c */
struct serving {
    int listener;     /* a listening unix socket, or NO_FD */
    int control;      /* connections arrive as descriptors; its end is the owner's end; or NO_FD */
    int64_t lifetime_ns; /* 0: none */
    int64_t lease_ns;    /* end this long after the last RENEW; 0: no lease */
    const char *socket_path; /* unlinked at the end, or NULL */
};
int serve(const struct serving *serving);
int is_handler(pid_t pid);
extern int is_init; /* whether this is, or serves, PID 1 of a namespace: only then all may be killed */

/* replace.c and layers.c: root directories. System calls by number: C libraries differ in which of
 * these they wrap. */
enum { CALL_OPEN_TREE = 428, CALL_MOVE_MOUNT = 429, CALL_MOUNT_SETATTR = 442 };
#ifndef MOUNT_ATTR_RDONLY
#define MOUNT_ATTR_RDONLY 0x1
#define MOUNT_ATTR_NOSUID 0x2
#define MOUNT_ATTR_NODEV 0x4
#endif
#ifndef MOUNT_ATTR_IDMAP
#define MOUNT_ATTR_IDMAP 0x100000
#endif
#ifndef OPEN_TREE_CLONE
#define OPEN_TREE_CLONE 1
#endif
#ifndef OPEN_TREE_CLOEXEC
#define OPEN_TREE_CLOEXEC O_CLOEXEC
#endif
#ifndef AT_RECURSIVE
#define AT_RECURSIVE 0x8000
#endif
#define MOVE_FROM_EMPTY_PATH 0x4
#define MOVE_TO_EMPTY_PATH 0x40
struct mount_attributes {
    uint64_t set, clear, propagation, userns;
};
#define MAX_MOUNTS 512
struct taken_mount {
    int tree; /* a mount that is nowhere yet, with all below it */
    const char *path;
};
struct taken_mounts {
    struct taken_mount mounts[MAX_MOUNTS];
    size_t count;
};
/* Each returns NULL, or what failed, with errno set. */
const char *take_mounts(int mountinfo, struct taken_mounts *taken);
const char *furnish(int root, const struct taken_mounts *taken);
const char *put_root(int root);
struct hidden {
    int root; /* where layers hang: below the root directory, out of reach; or NO_FD */
    uint64_t bytes, inodes; /* bounds of one layer */
    const char *made_of[2]; /* what every root is above, the topmost first; relative to root */
};
extern struct hidden hidden;

int run_mux(int in, int out); /* mux.c */

/* box.c and mounts.c: the rootless sandbox. */
int run_local(int spec_fd, int control_fd);
struct step {
    uint8_t kind;
    char *path;   /* inside the sandbox */
    char *text;   /* source, link destination or content, by kind */
    uint32_t mode;
    int fd;       /* source opened before the old root goes away */
    int detached; /* fd is a mount of its own, in nobody's tree yet */
};
void map_image_owners(struct step *steps, uint32_t count, int user_namespace);
void open_sources(struct step *steps, uint32_t count, int bind_now); /* mounts.c */
void build_root(struct step *steps, uint32_t count, uint64_t bytes, uint64_t inodes);
void fail_step(const char *step, const char *detail) __attribute__((noreturn)); /* box.c */

#endif
