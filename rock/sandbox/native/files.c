/* Single files, directories and listening sockets, opened inside the sandbox.
 *
 * Paths are resolved here, below the sandbox's own root, so a link planted by an agent leads
 * nowhere outside. What is created belongs to the user named in the request.
 */
#define _GNU_SOURCE
#include "files.h"

#include "processes.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

int fail_file(int conn, int error) {
    return reply_error(conn, STAGE_FILE, error, strerror(error)) ? 1 : 0;
}

static int reply_descriptor(int conn, int fd, uint64_t size) {
    struct writer writer = {.size = 0};
    put_u64(&writer, size);
    return send_frame(conn, REP_FD, writer.bytes, writer.size, fd) ? 1 : 0;
}

const char *last_component(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

int usable_name(const char *name) {
    return *name && strcmp(name, ".") && strcmp(name, "..");
}

/* Opens (making it if it is missing) the directory `name` in `parent`; closes `parent`. */
static int enter(int parent, const char *name, const struct account *owner) {
    int made = mkdirat(parent, name, 0755) == 0, fd = -1;
    if (made || errno == EEXIST) fd = openat(parent, name, O_PATH | O_DIRECTORY | O_CLOEXEC);
    int error = errno;
    if (fd >= 0 && made && own(fd, owner)) {
        error = errno;
        close(fd);
        fd = -1;
    }
    close(parent);
    errno = error;
    return fd;
}

/* The directory that holds the last component of `path`. Links on the way are followed. */
int make_parents(const char *path, const struct account *owner) {
    if (*path != '/') {
        errno = EINVAL;
        return -1;
    }
    char *copy = strdup(path);
    if (!copy) return -1;
    int fd = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
    char *rest = copy, *last = (char *)(uintptr_t)last_component(copy), *name;
    *last = 0;
    while (fd >= 0 && (name = strsep(&rest, "/")))
        if (*name && strcmp(name, ".")) fd = enter(fd, name, owner);
    return fd;
}

/* For a client that no descriptor can reach. The file may change meanwhile; the size is a hint. */
static int send_content(int conn, int fd, uint64_t size) {
    static unsigned char chunk[64 * 1024];
    struct writer writer = {.size = 0};
    ssize_t got;
    put_u64(&writer, size);
    if (send_frame(conn, REP_FD, writer.bytes, writer.size, NO_FD)) return 1;
    while ((got = read(fd, chunk, sizeof chunk)) > 0)
        if (send_frame(conn, ENTRY_DATA, chunk, (size_t)got, NO_FD)) return 1;
    if (got < 0) return fail_file(conn, errno);
    return send_frame(conn, REP_DONE, NULL, 0, NO_FD) ? 1 : 0;
}

int handle_read(int conn, const struct frame *frame) {
    struct reader reader = reader_of(frame);
    char *path = get_text(&reader);
    uint32_t inlined = get_u32(&reader);
    struct stat info;
    if (reader.bad) return fail_file(conn, EINVAL);
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &info)) return fail_file(conn, errno);
    if (S_ISDIR(info.st_mode)) return fail_file(conn, EISDIR);
    if (!S_ISREG(info.st_mode)) return fail_file(conn, EINVAL);
    if (inlined) return send_content(conn, fd, (uint64_t)info.st_size);
    return reply_descriptor(conn, fd, (uint64_t)info.st_size);
}

/* What comes before COMMIT where the client has no descriptor to write to. */
static int take_content(int conn, int fd, struct frame *frame) {
    for (;;) {
        if (read_frame(conn, frame) <= 0) return ECANCELED;
        if (frame->type == REQ_COMMIT) return 0;
        if (frame->type != ENTRY_DATA) return EINVAL;
        if (write_all(fd, frame->body, frame->size)) return errno;
        free(frame->body);
    }
}

/* The file appears under its name at once and complete, or not at all. */
static int commit_file(int conn, int dir, int fd, const char *hidden, const char *name,
                       mode_t mode, const struct account *owner) {
    struct frame frame;
    int error = take_content(conn, fd, &frame);
    if (!error && (own(fd, owner) || fchmod(fd, mode) || renameat(dir, hidden, dir, name)))
        error = errno;
    if (!error) return send_frame(conn, REP_DONE, NULL, 0, NO_FD) ? 1 : 0;
    unlinkat(dir, hidden, 0);
    return fail_file(conn, error);
}

int handle_write(int conn, const struct frame *frame) {
    struct reader reader = reader_of(frame);
    struct account owner;
    char hidden[64], *path = get_text(&reader);
    mode_t mode = get_u32(&reader) & 0777;
    int error = find_account(get_text(&reader), &owner);
    uint32_t inlined = get_u32(&reader);
    const char *name = last_component(path);
    if (error) return reply_error(conn, STAGE_USER, error, "no such user") ? 1 : 0;
    if (reader.bad || !usable_name(name)) return fail_file(conn, EINVAL);
    int dir = make_parents(path, &owner);
    if (dir < 0) return fail_file(conn, errno);
    snprintf(hidden, sizeof hidden, ".rock-%d-%llx", getpid(), (unsigned long long)now_ns());
    int fd = openat(dir, hidden, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0) return fail_file(conn, errno);
    if (!inlined && reply_descriptor(conn, fd, 0)) {
        unlinkat(dir, hidden, 0);
        return 1;
    }
    return commit_file(conn, dir, fd, hidden, name, mode, &owner);
}

/* Makes a directory and its parents; the last one gets the mode and the owner even if it was there. */
int handle_mkdir(int conn, const struct frame *frame) {
    struct reader reader = reader_of(frame);
    struct account owner;
    char *path = get_text(&reader);
    mode_t mode = get_u32(&reader) & 07777;
    int error = find_account(get_text(&reader), &owner);
    const char *name = last_component(path);
    if (error) return reply_error(conn, STAGE_USER, error, "no such user") ? 1 : 0;
    if (reader.bad || !usable_name(name)) return fail_file(conn, EINVAL);
    int dir = make_parents(path, &owner);
    int place = dir < 0 ? -1 : enter(dir, name, &owner);
    int fd = place < 0 ? -1 : openat(place, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || own(fd, &owner) || fchmod(fd, mode)) return fail_file(conn, errno);
    return send_frame(conn, REP_DONE, NULL, 0, NO_FD) ? 1 : 0;
}

int handle_listen(int conn, const struct frame *frame) {
    struct reader reader = reader_of(frame);
    uint32_t port = get_u32(&reader);
    struct sockaddr_in address = {.sin_family = AF_INET};
    int yes = 1;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons((uint16_t)port);
    int fd = reader.bad || port > 65535 ? -1 : socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (reader.bad || port > 65535) errno = EINVAL;
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) ||
        bind(fd, (struct sockaddr *)&address, sizeof address) || listen(fd, 1024))
        return reply_error(conn, STAGE_LISTEN, errno, strerror(errno)) ? 1 : 0;
    socklen_t size = sizeof address; /* the port is for clients that get no descriptor */
    if (getsockname(fd, (struct sockaddr *)&address, &size)) return fail_file(conn, errno);
    return reply_descriptor(conn, fd, ntohs(address.sin_port));
}
